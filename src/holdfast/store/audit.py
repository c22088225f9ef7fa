"""The audit: who did what to which jobs, and how many, written in the transaction that does it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from ..model.actor import Actor
from ..model.masking import masked
from .statement import Row, Statement, named, nothing

LOOK = 100_000  # entries that one step of a search reads
_CHANGE = 16 * 1024  # bytes of JSON that are kept of what was, and of what is


@dataclass(frozen=True, slots=True)
class AuditLine:
    id: int
    at: datetime
    actor: str  # as the caller named it
    action: str
    selection: dict[str, Any]
    count: int
    role: str | None  # as the server knows it; None: written before it was noted
    surface: str | None  # cli, web, api, sql or python; None: written by an older release
    address: str | None  # of the client, as the surface reported it
    reason: str | None
    before: dict[str, Any] | None  # the changed data, as they were; None: not kept for this act
    after: dict[str, Any] | None
    operation: UUID | None  # of which the act is a part


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries; None does not restrict."""

    actor: str | None = None
    action: str | None = None  # 'jobs retry', or the noun alone: 'jobs'
    target: str | None = None  # an id or a name that stands in the selection


def audit(
    actor: Actor,
    action: str,
    selection: Mapping[str, object],
    count: int,
    before: Mapping[str, object] | None = None,
    after: Mapping[str, object] | None = None,
) -> Statement[None]:
    """One act in one transaction. `action` is noun and verb as on the command line: 'queue pause'. `before` and `after` are
    what it changed; secrets in them are masked."""
    return named("audit", _entry(actor, action, selection, count, before, after), nothing)


def audit_begin(
    actor: Actor,
    action: str,
    selection: Mapping[str, object],
    before: Mapping[str, object] | None = None,
    after: Mapping[str, object] | None = None,
    *,
    count: int = 0,
) -> Statement[int]:
    """The entry of an act. One over many transactions counts it up by audit_add in each of them."""
    params = _entry(actor, action, selection, count, before, after)
    return named("audit_begin", params, lambda rows: int(rows[0][0]))


def audit_add(entry: int, count: int) -> Statement[bool]:
    return named("audit_add", (entry, count), lambda rows: bool(rows[0][0]))


def list_audit(
    wanted: AuditFilter, before: int | None, limit: int
) -> Statement[tuple[list[AuditLine], int | None]]:
    """Those that match among the next LOOK entries, the last first, and the entry where it stopped (None: at the first)."""

    def decode(rows: Sequence[Row]) -> tuple[list[AuditLine], int | None]:
        return [_line(r[1:]) for r in rows if r[1] is not None], rows[0][0] if rows else None

    params = (before, limit, LOOK, wanted.actor, wanted.action, wanted.target)
    return named("list_audit", params, decode)


def _line(r: Row) -> AuditLine:
    before, after = (None if text is None else json.loads(text) for text in r[10:12])
    return AuditLine(*[*r[:4], json.loads(r[4]), *r[5:10], before, after, r[12]])


def _entry(
    actor: Actor,
    action: str,
    selection: Mapping[str, object],
    count: int,
    before: Mapping[str, object] | None,
    after: Mapping[str, object] | None,
) -> tuple[object, ...]:
    operation = None if actor.operation is None else str(actor.operation)
    caller = (actor.surface, actor.address, actor.reason)
    return actor.name, action, _json(selection), count, *caller, _change(before), _change(after), operation


def _json(selection: Mapping[str, object]) -> str:
    return json.dumps({k: v for k, v in selection.items() if v is not None}, default=str)


def _change(values: Mapping[str, object] | None) -> str | None:
    """Values that are too long are left out by name: the audit is kept for a year."""
    if values is None:
        return None
    kept: dict[str, object] = {}
    room = _CHANGE
    for name, value in values.items():
        hidden = masked({name: value})[name]
        size = len(json.dumps({name: hidden}, default=str))
        kept[name] = hidden if size <= room else f"({size:,} bytes, not kept)"
        room -= min(size, room)
    return json.dumps(kept, default=str)
