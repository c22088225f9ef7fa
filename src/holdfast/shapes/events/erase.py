"""Erase the data of events, for good: single events, or all of a key. The event stays, in its place, without data, or with
blanks in the fields that its class names."""

import json
from collections.abc import Sequence
from typing import Any

from ...errors import ConfigurationError
from ...model.actor import Actor
from ...operate.procedure import Procedure, actor, run
from ...store.audit import audit
from ...store.statement import Flow
from . import store
from .contract import DECLARED
from .event import Event

AT_ONCE = 20_000  # events that one statement reads


def erase(which: Sequence[Event[Any]], *, whole: bool = False, dry_run: bool = False) -> Procedure[int]:
    """These events lose their data: the fields that their classes name, or all of it. Returns how many had any."""
    who = yield from actor()
    ids, blanks = [event.id for event in which], declared_blanks(whole)

    def flow() -> Flow[int]:
        found: list[int] = []
        for event_id in ids:
            seq = yield from store.event_by_id(event_id)
            found += [] if seq is None else [seq]
        erased: int = yield from store.erase_events(ids, found, blanks, dry_run=dry_run)
        if erased and not dry_run:
            selection = {"ids": [str(event_id) for event_id in ids], **_said(blanks)}
            yield from audit(who, "erase_events", selection, erased)
        return erased

    return (yield from run(flow))


def erase_key(key: str, *, whole: bool = False, dry_run: bool = False) -> Procedure[int]:
    """All events of the key lose their data, day by day and in batches. Returns how many had any."""
    if not key:
        raise ConfigurationError("events without a key have none in common. Erase them by position or id")
    who = yield from actor()
    total, blanks = 0, declared_blanks(whole)
    for slot in range(32):
        after: int | None = 0
        while after is not None:
            after, erased = yield from run(_part(slot, after, key, who, blanks, dry_run=dry_run))
            total += erased
    return total


def _part(slot: int, after: int, key: str, who: Actor, blanks: str, *, dry_run: bool) -> Any:
    def flow() -> Flow[tuple[int | None, int]]:
        last, erased = yield from store.erase_key(slot, after, AT_ONCE, key, blanks, dry_run=dry_run)
        if erased and not dry_run:
            yield from audit(who, "erase_events", {"key": key, **_said(blanks)}, erased)
        return last, erased

    return flow


def declared_blanks(whole: bool) -> str:
    """What classes of this process erase, as SQL takes it: fields by 'version type'. A type without fields, and a
    version without a class, lose all of their data."""
    found: dict[str, list[Any]] = {}
    if not whole:
        for (name, version), kinds in sorted(DECLARED.items()):
            fields = dict(field for kind in kinds for field in kind.blanks)
            if fields:
                found[f"{version} {name}"] = [[list(path), blank] for path, blank in fields.items()]
    return json.dumps(found)


def _said(blanks: str) -> dict[str, Any]:
    """For the audit: which fields, of which types."""
    fields = {of: [".".join(path) for path, _ in named] for of, named in json.loads(blanks).items()}
    return {"fields": fields} if fields else {}
