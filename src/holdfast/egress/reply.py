"""What comes of a request: a `Reply`, or a `SendFailed`. Never an exception."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["dns", "refused_address", "connect", "tls", "timeout", "protocol", "too_large"]

# One text for a name that is not there and for one that leads inward: else strangers could ask which names exist.
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
    """There was no whole reply. `detail` is for operators; `public` may be shown to whoever chose the URL."""

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
