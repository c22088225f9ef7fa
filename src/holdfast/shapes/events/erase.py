"""Erase the data of events, for good: one by one, or all of a key. The event stays, in its place, without its data."""

from collections.abc import Sequence
from typing import Any

from ...errors import ConfigurationError
from ...operate.procedure import Procedure, actor, run
from ...store.audit import audit
from ...store.statement import Flow
from . import store
from .event import Event

AT_ONCE = 20_000  # events that one statement looks at


def erase(which: Sequence[Event[Any]]) -> Procedure[int]:
    """These events lose their data. Returns how many had any."""
    who = yield from actor()
    ids = [event.id for event in which]

    def flow() -> Flow[int]:
        found: list[int] = []
        for event_id in ids:
            seq = yield from store.event_by_id(event_id)
            found += [] if seq is None else [seq]
        erased: int = yield from store.erase_events(ids, found)
        if erased:
            yield from audit(who, "erase_events", {"ids": [str(event_id) for event_id in ids]}, erased)
        return erased

    return (yield from run(flow))


def erase_key(key: str, *, dry_run: bool = False) -> Procedure[int]:
    """All events of the key lose their data, day by day and in batches. Returns how many had any."""
    if not key:
        raise ConfigurationError("events without a key have none in common. Erase them by position or id")
    who = yield from actor()
    total = 0
    for slot in range(32):
        after: int | None = 0
        while after is not None:
            after, erased = yield from run(_part(slot, after, key, who, dry_run=dry_run))
            total += erased
    return total


def _part(slot: int, after: int, key: str, who: str, *, dry_run: bool) -> Any:
    def flow() -> Flow[tuple[int | None, int]]:
        last, erased = yield from store.erase_key(slot, after, AT_ONCE, key, dry_run=dry_run)
        if erased and not dry_run:
            yield from audit(who, "erase_events", {"key": key}, erased)
        return last, erased

    return flow
