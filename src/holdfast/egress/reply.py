"""The result of a request: a `Reply`, or a `SendFailed`. Never an exception."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["dns", "refused_address", "connect", "tls", "timeout", "protocol", "too_large"]

LONGEST_WAIT = 86400.0

# One text for a name that does not exist and for one that leads inward: otherwise strangers could probe for names.
_NOWHERE = "the host name does not lead to an address that may be called"
_PUBLIC: dict[Kind, str] = {
    "dns": _NOWHERE,
    "refused_address": _NOWHERE,
    "connect": "no connection could be made",
    "tls": "the TLS handshake failed: look at the certificate, its name and the versions of TLS",
    "timeout": "there was no whole reply in time",
    "protocol": "the reply was not whole, or not HTTP",
    "too_large": "the head of the reply was too large",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply, whatever its status. `body`: its first 64 KiB, as they came."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    address: str | None  # that was called; of the proxy, where there is one
    took: float  # seconds


@dataclass(frozen=True, slots=True)
class SendFailed:
    """There was no whole reply. `detail` is for operators; `public` may be shown to the person who chose the URL."""

    kind: Kind
    detail: str
    address: str | None
    took: float

    @property
    def public(self) -> str:
        return _PUBLIC[self.kind]

    @property
    def unknown(self) -> bool:
        """Whether the server may have acted on the request."""
        return self.kind in ("timeout", "protocol", "too_large")


def retry_after(
    headers: Mapping[str, str], now: datetime | None = None, *, longest: float = LONGEST_WAIT
) -> float | None:
    """Seconds that a server asks to wait: a whole number or a date, at most `longest`. None: no valid value."""
    text = headers.get("retry-after", "").strip()
    if not text or len(text) > 100:
        return None
    if text.isascii() and text.isdigit():
        return min(float(text), longest) or None
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    left = (at - (now or datetime.now(UTC))).total_seconds()
    return min(left, longest) if left > 0 else None
