"""Secrets at rest: sealed by AES-256-GCM under a ring of keys, which is in the environment and never in the database.

`HOLDFAST_SECRET_KEYS=2026b:BASE64,2026a:BASE64`: the first key seals, and every key opens. A sealed value is bound to its
place (`bound_to`): a row that is copied to another endpoint cannot be opened there. Without a ring secrets are stored bare.
"""

import base64
import binascii
import os
import re
import secrets
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from ..distribution import install
from ..errors import ConfigurationError, SecretUnreadable

VARIABLE = "HOLDFAST_SECRET_KEYS"
_KEY_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_KEY_BYTES = 32
_NONCE_BYTES = 12
_TAG_BYTES = 16


class Hidden(str):
    """A text that is not shown: its repr is `<hidden>`, so that no log, traceback or error report contains it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<hidden>"


class HiddenBytes(bytes):
    """Bytes that are not shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<hidden>"


class Sealed(NamedTuple):
    """What is stored: the bytes, and the key that opens them; None: they are bare."""

    key_id: str | None
    data: bytes

    def __repr__(self) -> str:
        return f"Sealed(key_id={self.key_id!r}, {len(self.data)} bytes)"


def bound_to(kind: str, endpoint: UUID, secret: UUID | None = None) -> bytes:
    """The place of a sealed text: its kind, its endpoint, its number."""
    return f"holdfast {kind}\0".encode() + endpoint.bytes + (b"" if secret is None else secret.bytes)


class KeyRing:
    """The keys by their ids; the first one seals. An empty ring leaves secrets bare."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        for name, key in keys.items():
            if not _KEY_ID.fullmatch(name):
                raise ConfigurationError(
                    f"{VARIABLE}: the id of a key has 1 to 64 letters, digits, '_', '.' or '-', and one has not. "
                    f"Write: id:base64,id:base64"
                )
            if len(key) != _KEY_BYTES:
                raise ConfigurationError(
                    f"{VARIABLE}: key {name!r} has {len(key)} bytes, and AES-256 needs {_KEY_BYTES}. "
                    f"Make one: openssl rand -base64 {_KEY_BYTES}"
                )
        self._keys = {name: HiddenBytes(key) for name, key in keys.items()}

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the keys, the one that seals first."""
        return tuple(self._keys)

    @property
    def sealing(self) -> str | None:
        """The id of the key that seals; None: there is none."""
        return next(iter(self._keys), None)

    def seal(self, text: str, where: bytes) -> Sealed:
        if (name := self.sealing) is None:
            return Sealed(None, text.encode())
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return Sealed(name, nonce + _cipher(self._keys[name]).encrypt(nonce, text.encode(), where))

    def open(self, sealed: Sealed, where: bytes) -> Hidden:
        """SecretUnreadable: its key is not in the ring, or it was not sealed for this place."""
        if sealed.key_id is None:
            return Hidden(sealed.data.decode())
        key = self._keys.get(sealed.key_id)
        if key is None:
            known = ", ".join(self.ids) or "none"
            raise SecretUnreadable(
                f"a secret is sealed by key {sealed.key_id!r}, which {VARIABLE} does not have (it has: {known}). "
                "Add that key at the end of the ring; `holdfast webhook reseal` makes it unnecessary"
            )
        nonce, body = sealed.data[:_NONCE_BYTES], sealed.data[_NONCE_BYTES:]
        if len(body) < _TAG_BYTES:
            raise SecretUnreadable(_changed(sealed.key_id))
        cipher = _cipher(key)
        try:
            return Hidden(cipher.decrypt(nonce, body, where).decode())
        except _invalid_tag():
            raise SecretUnreadable(_changed(sealed.key_id)) from None

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(self.ids) or 'empty'})"


def _changed(key_id: str) -> str:
    return (
        f"a secret that says it is sealed by key {key_id!r} cannot be opened: it was changed, it stands at another endpoint "
        "than it was sealed for, or the key of this id is another one. Rotate the endpoint's secret"
    )


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise ConfigurationError(
            f"sealing secrets ({VARIABLE}) needs the package cryptography: {install('webhooks')}"
        ) from None
    return AESGCM(key)


def _invalid_tag() -> type[Exception]:
    from cryptography.exceptions import InvalidTag

    return InvalidTag


def key_ring(env: Mapping[str, str] | None = None) -> KeyRing:
    """The ring of the environment. ConfigurationError when it is malformed, without a key in it."""
    return parse_ring((os.environ if env is None else env).get(VARIABLE, ""))


@lru_cache(maxsize=8)
def parse_ring(text: str) -> KeyRing:
    """`id:base64,id:base64`; the empty text is an empty ring."""
    keys: dict[str, bytes] = {}
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    for n, part in enumerate(parts, 1):
        name, colon, encoded = part.partition(":")
        if not colon:
            raise ConfigurationError(f"{VARIABLE}: entry {n} has no ':'. Write: id:base64,id:base64")
        try:
            key = HiddenBytes(base64.b64decode(encoded, validate=True))
        except (binascii.Error, ValueError):
            raise ConfigurationError(
                f"{VARIABLE}: the key of entry {n} is not base64. Make one: openssl rand -base64 {_KEY_BYTES}"
            ) from None
        if name in keys:
            raise ConfigurationError(
                f"{VARIABLE}: entry {n} has the id of an earlier one. Give each key an id of its own, and use none twice"
            )
        keys[name] = key
    return KeyRing(keys)
