"""Who acts, for the audit: a name, the surface, the address and the reason."""

import ipaddress
from dataclasses import dataclass, replace
from typing import Literal, get_args
from uuid import UUID

from ..errors import ConfigurationError
from .text import storable

Surface = Literal["cli", "web", "api", "sql", "python"]
SURFACES: tuple[Surface, ...] = get_args(Surface)
_NAME = 200
_REASON = 2000


@dataclass(frozen=True, slots=True)
class Actor:
    """`Operator(database, Actor("ann", "web", address="10.0.0.7"))`. A plain name means a call from Python."""

    name: str
    surface: Surface = "python"
    address: str | None = None  # of the client, an IP address; None: there is none, or it is not known
    reason: str | None = None
    operation: UUID | None = None  # of which the act is a part

    def __post_init__(self) -> None:
        if self.surface not in SURFACES:
            raise ConfigurationError(f"there is no surface {self.surface!r} (known: {', '.join(SURFACES)})")
        object.__setattr__(self, "name", storable(self.name, _NAME))
        object.__setattr__(self, "address", None if self.address is None else _address(self.address))
        reason = storable((self.reason or "").strip(), _REASON)
        object.__setattr__(self, "reason", reason or None)

    def because(self, reason: str | None) -> "Actor":
        """The same with a reason; None: with its own."""
        return self if reason is None else replace(self, reason=reason)

    def within(self, operation: UUID) -> "Actor":
        return replace(self, operation=operation)


def actor_of(who: "str | Actor") -> Actor:
    return who if isinstance(who, Actor) else Actor(who)


def is_address(text: str) -> bool:
    """Whether it is an Internet address: a client on a local socket has none."""
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def _address(text: str) -> str:
    """Without the zone of a link-local address, which PostgreSQL rejects."""
    try:
        return str(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        raise ConfigurationError(
            f"{text!r} is no IP address. Pass the client's address without its port, or None"
        ) from None
