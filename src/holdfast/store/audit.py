"""The audit: who did what to which jobs, and how many, written in the transaction that does it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .statement import Row, Statement, named, nothing


@dataclass(frozen=True, slots=True)
class AuditLine:
    id: int
    at: datetime
    actor: str  # as the caller said
    action: str
    selection: dict[str, Any]
    count: int
    role: str | None  # as the server knows it; None: written before it was noted


def audit(actor: str, action: str, selection: Mapping[str, object], count: int) -> Statement[None]:
    """One act in one transaction. `action` is noun and verb as on the command line: 'queue pause'."""
    return named("audit", (actor, action, _json(selection), count), nothing)


def audit_begin(actor: str, action: str, selection: Mapping[str, object]) -> Statement[int]:
    """An act over many transactions: its entry, to be counted up by audit_add in each of them."""
    return named("audit_begin", (actor, action, _json(selection)), lambda rows: int(rows[0][0]))


def audit_add(entry: int, count: int) -> Statement[bool]:
    return named("audit_add", (entry, count), lambda rows: bool(rows[0][0]))


def list_audit(before: int | None, limit: int) -> Statement[list[AuditLine]]:
    def decode(rows: Sequence[Row]) -> list[AuditLine]:
        return [AuditLine(*[*r[:4], json.loads(r[4]), *r[5:]]) for r in rows]

    return named("list_audit", (before, limit), decode)


def _json(selection: Mapping[str, object]) -> str:
    return json.dumps({k: v for k, v in selection.items() if v is not None}, default=str)
