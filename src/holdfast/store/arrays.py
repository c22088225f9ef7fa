"""Arrays as the server reads them. As text, which every driver passes: for uuids that costs a tenth of handing the driver a
list (0.14 us against 1.55 each). And uuids in the binary form, for our own connections: the server takes 0.4 us less."""

import struct
from collections.abc import Iterable, Sequence

_UUID = 2950  # the type, as the server numbers it
_LENGTH = b"\0\0\0\x10"  # of one
_SIXTEEN = _LENGTH.hex()


class UuidArray(bytes):
    """A uuid[] in its binary form."""


def uuid_array(texts: Sequence[str]) -> UuidArray:
    """Of uuids as text, the way the server writes them."""
    if not texts:
        return UuidArray(struct.pack("!iii", 0, 0, _UUID))
    return UuidArray(_header(texts) + bytes.fromhex((_SIXTEEN + _SIXTEEN.join(texts)).replace("-", "")))


def repeated_uuids(texts: Sequence[str]) -> UuidArray:
    """The same of at least one, where most are alike: each of them is read once."""
    known = {text: _LENGTH + bytes.fromhex(text.replace("-", "")) for text in set(texts)}
    return UuidArray(_header(texts) + b"".join(map(known.__getitem__, texts)))


def _header(texts: Sequence[str]) -> bytes:
    return struct.pack("!iiiii", 1, 0, _UUID, len(texts), 1)


def plain_array(values: Iterable[str]) -> str:
    """Of texts that need no quotes: numbers, uuids, fixed words."""
    return "{" + ",".join(values) + "}"


def int_array(numbers: Iterable[int]) -> str:
    """As text that the server reads once, already cast. The driver says smallint[] for small numbers, and a kept plan
    casts that again for every row that is compared with it: 60 ms instead of 10 for 1,000 keys and half of the buckets."""
    return plain_array(map(str, numbers))


def text_array(values: Sequence[str | None]) -> str:
    """Of any texts. Many are quoted at once, joined by a character that no text in a database has: six times as fast."""
    if len(values) > 1 and None not in values:
        together = "\0".join(values)  # type: ignore[arg-type]
        if together.count("\0") == len(values) - 1:
            return "{" + _quoted(together).replace("\0", '","') + "}"
    return "{" + ",".join("NULL" if v is None else _quoted(v) for v in values) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
