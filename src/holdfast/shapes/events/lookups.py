"""Questions that several verbs begin with: the last position, a subscription by its name, a place in the log."""

from datetime import datetime
from typing import Literal

from ...errors import ConfigurationError, ForeignLog, UnknownSubscription
from ...model.queue import Rate
from ...operate.procedure import Procedure, run
from ...tasks.payload import shown
from . import store
from .store import Listed

To = int | datetime | Literal["start", "end"]


def turn() -> Procedure[int]:
    """Number the committed events, if the login may; returns the last position."""
    last = yield from run(store.turn_or_look)
    if last is None:
        raise ForeignLog
    return last


def list_all(name: str | None = None) -> Procedure[list[Listed]]:
    """Every subscription with its lag."""
    yield from turn()
    return (yield from run(lambda: store.list_subscriptions(name)))


def find(name: str) -> Procedure[list[Listed]]:
    """The shards of one; UnknownSubscription if there is none."""
    found = yield from list_all(name)
    if not found:
        raise (yield from unknown(name))
    return found


def unknown(name: str) -> Procedure[UnknownSubscription]:
    """The error for an unknown name."""
    known = yield from run(store.list_subscriptions)
    names = ", ".join(dict.fromkeys(listed.name for listed in known))
    return UnknownSubscription(
        f"there is no subscription {name!r}"
        + (f" (known: {names})" if names else "")
        + ". A worker makes those that its code declares"
    )


def check_to(to: object) -> None:
    fits = (isinstance(to, int) and not isinstance(to, bool)) or to in ("start", "end")
    if isinstance(to, datetime):
        fits = to.tzinfo is not None
    if not fits:
        raise ConfigurationError(
            f'a position is a number, a time with its zone, "start" or "end", not {shown(to)}'
        )


def per_second(rate: object) -> float | None:
    """How many events a second; None: no limit."""
    if rate is None:
        return None
    if not isinstance(rate, Rate):
        raise ConfigurationError(f"rate must be a Rate, such as Rate(100, per=1), not {shown(rate)}")
    return rate.per_second
