"""The timeline of a run: its records, in all its eras, as the command line, the dashboard and the test kit read it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from ...model.outcome import ErrorText
from ...store.statement import Row, Statement, named
from .journal import Kind

Outcome = Literal["running", "retrying", "done", "failed", "timed_out", "cancelled"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a timeline: `for entry in run.timeline(): ...`."""

    n: int  # the order in which they were written
    era: int  # continue_as_new() begins another
    scope: str
    key: str
    kind: Kind
    outcome: (
        Outcome  # running: it is at work, for a second or more, or jobs that it called have not all ended;
    )
    # retrying: it failed, and is tried again later
    ordinal: int | None  # its place in its scope; None: it has none
    began_at: datetime
    ended_at: datetime | None  # None: it is running or retrying
    attempts: int
    generation: int  # of the claim under which it was written: how many owners the run had by then
    worker: str | None  # that had the run then; known of its last owner alone
    size: int  # of the result, in bytes of JSON
    result: Any
    error: str | None
    linked: UUID | None  # the job or run


@dataclass(frozen=True, slots=True)
class Sent:
    """A signal that was sent to a run."""

    name: str
    payload: Any
    key: str | None  # its idempotency key
    sent_at: datetime
    taken_by: str | None  # the key of the wait that took it; None: it is unread


def timeline(run_id: UUID) -> Statement[list[Entry]]:
    """Running steps come last; one that failed before keeps its place. So the numbers are those of recorded()."""

    def decode(rows: Sequence[Row]) -> list[Entry]:
        at_work = {row[:2]: row for row in rows if row[3] == "running"}  # by era and key
        found: list[Entry] = []
        for row in rows:
            if row[3] == "retrying" and (now := at_work.pop(row[:2], None)) is not None:
                error = row[11]
                found.append(_entry(len(found), (*now[:11], error, *now[12:])))
            elif row[3] != "running" or row[:2] in at_work:
                found.append(_entry(len(found), row))
        return found

    return _rows(run_id, decode)


def recorded(run_id: UUID) -> Statement[list[Entry]]:
    """The written records: without running steps."""

    def decode(rows: Sequence[Row]) -> list[Entry]:
        return [_entry(n, row) for n, row in enumerate(row for row in rows if row[3] != "running")]

    return _rows(run_id, decode)


def _rows(run_id: UUID, decode: Callable[[Sequence[Row]], list[Entry]]) -> Statement[list[Entry]]:
    return named("workflow_timeline", (run_id,), decode)


def messages(run_id: UUID) -> Statement[list[Sent]]:
    def decode(rows: Sequence[Row]) -> list[Sent]:
        return [
            Sent(name, value(payload), key, sent_at, taken) for name, payload, key, sent_at, taken in rows
        ]

    return named("workflow_messages", (run_id,), decode)


def value(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def error_of(text: str | None) -> str | None:
    """`Kind: message` of a recorded error."""
    if text is None:
        return None
    found = json.loads(text)
    return ErrorText(found.get("kind", ""), found.get("message", "")).summary


def _entry(n: int, row: Row) -> Entry:
    era, key, kind, outcome, ordinal, began, ended, attempts, generation, worker, result, error, linked = row
    stands: Outcome = "running" if outcome == "calling" else outcome
    return Entry(
        n,
        era,
        key.rpartition("/")[0],
        key,
        kind,
        stands,
        ordinal,
        began,
        None if stands in ("running", "retrying") else ended,
        attempts,
        generation,
        worker,
        len((result or "").encode()),
        value(result),
        error_of(error),
        linked,
    )
