"""Rows that an attempt leaves behind: `job.record(table, row)` collects them, and the settle of the attempt writes them.

They travel with the outcome. The settler hands them to the recorder that a shape registered for the table, after its own
statements and in their transaction, for each attempt whose end was written there: completed, failed, snoozed, dead-lettered,
cancelled or released. Rows of a stale owner, of a job that is locked, or of a settle that was done before are not
written. All rows of a batch for one table are one call.

A recorder is `(jobs, rows) -> Flow[Any]`: `rows[n]` is the JSON text of an object that `jobs[n]` recorded. It writes them
in one statement and must not wait for locks. Where it has to lock a row, it sets a short lock_timeout first; a job whose
row is locked is then settled a moment later.

A row that the database refuses, or for which the recorder raises, affects its own job only: the job becomes a dead letter
(SettleRefused) that says why, without rows. When no row at all can be written (a missing table, missing rights), jobs that
have rows for that table wait, and all others are settled.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import ConfigurationError, InvalidPayload, JobSettled
from ..model.outcome import (
    Completed,
    Ended,
    Lost,
    Outcome,
    Recorded,
    Settled,
    SettledElsewhere,
    Settlement,
    Suspended,
)
from ..model.shown import shown
from ..model.state import ARCHIVED, UNSETTLED
from ..store.statement import Flow

ROW_BYTES = 64 * 1024
ATTEMPT_BYTES = 256 * 1024
ATTEMPT_ROWS = 1000
_CALL_BYTES = 4 * 1024 * 1024  # more rows than that are given to the recorder in several calls
_UNWRITTEN = (Lost, SettledElsewhere, Suspended)

Recorder = Callable[[Sequence[Ended], Sequence[str]], Flow[Any]]


class RecorderFailed(Exception):
    """A recorder raised: its own code, not the database."""


def _no_text(value: object, what: str, limit: int) -> str:
    raise ConfigurationError(f"{what} cannot be recorded: no shape of this app writes rows")


class Recorders:
    """The recorders that the shapes registered, by table."""

    def __init__(
        self,
        by_table: Mapping[str, Recorder] | None = None,
        dump: Callable[[object, str, int], str] = _no_text,
    ) -> None:
        """`dump` makes JSON text of a value, or refuses it: (value, its name in errors, most bytes)."""
        self._by_table = dict(by_table or {})
        self._dump = dump
        self.writing: str | None = None  # the table whose recorder runs, or has failed in the database

    def row(self, table: str, row: Mapping[str, object]) -> Recorded:
        if table not in self._by_table:
            known = ", ".join(sorted(self._by_table)) or "none"
            raise ConfigurationError(
                f"{_call(table)}: no shape of this app writes rows for that; known: {known}"
            )
        if not isinstance(row, Mapping):
            raise InvalidPayload(
                f"a row for {table} is an object, not {shown(row)}. Pass a dict: {{column: value}}"
            )
        text = self._dump(dict(row), f"the row for {table}", ROW_BYTES) if row else "{}"
        return Recorded(table, text)

    def write(self, batch: Sequence[Settlement], exceptions: Mapping[int, Settled]) -> Flow[None]:
        """Write the rows of the attempts whose end was written in this transaction. `exceptions`: the result of those that
        did not plainly complete, by their place."""
        self.writing = None
        found: dict[str, list[tuple[Ended, str]]] = {}
        for place, settlement in enumerate(batch):
            if settlement.outcome.rows and (ended := _applied(settlement, exceptions.get(place))) is not None:
                for table, row in settlement.outcome.rows:
                    found.setdefault(table, []).append((ended, row))
        for table in sorted(found):  # in a fixed order, so that two settlers cannot deadlock
            for part in _parts(found[table]):
                self.writing = table
                try:
                    yield from self._by_table[table]([job for job, _ in part], [row for _, row in part])
                except Exception as error:
                    text = f"the recorder of {table} failed: {type(error).__name__}: {error}"
                    raise RecorderFailed(text) from error
        self.writing = None


def _applied(settlement: Settlement, answer: Settled | None) -> Ended | None:
    grant, outcome, *_ = settlement
    if answer is None:
        return Ended(grant, outcome, ARCHIVED[type(outcome)])
    return None if answer.already or answer.state in UNSETTLED else Ended(grant, outcome, answer.state)


def _parts(rows: Sequence[tuple[Ended, str]]) -> Iterator[list[tuple[Ended, str]]]:
    part: list[tuple[Ended, str]] = []
    size = 0
    for ended, row in rows:
        if part and size + len(row) > _CALL_BYTES:
            yield part
            part, size = [], 0
        part.append((ended, row))
        size += len(row)
    yield part


def _call(table: object) -> str:
    return f"job.record({repr(table)[:60]}, ...)"


class Rows:
    """What one attempt has recorded so far. Any thread of its handler may add."""

    def __init__(self, recorders: Recorders, *, in_transaction: bool = False) -> None:
        self._recorders = recorders
        self._in_transaction = in_transaction
        self._rows: list[Recorded] = []
        self._bytes = 0
        self._ended = False

    def add(self, table: str, row: Mapping[str, object]) -> None:
        self._check(table)
        self._keep(self._recorders.row(table, row))

    def add_text(self, table: str, row: str) -> None:
        """The same, of the JSON text of an object that was looked at."""
        self._check(table)
        self._keep(Recorded(table, row))

    def _check(self, table: str) -> None:
        if self._ended:
            raise JobSettled(f"{_call(table)}: the attempt has ended, and its rows with it")
        if self._in_transaction:
            raise ConfigurationError(
                f"{_call(table)}: a handler with a Transaction ends its job in that transaction. "
                "Write the row there"
            )

    def _keep(self, made: Recorded) -> None:
        size = len(made.row.encode())
        if len(self._rows) >= ATTEMPT_ROWS or self._bytes + size > ATTEMPT_BYTES:
            raise InvalidPayload(
                f"an attempt records at most {ATTEMPT_ROWS:,} rows and {ATTEMPT_BYTES:,} bytes "
                f"({ATTEMPT_BYTES // 1024} KiB); this one would have {len(self._rows) + 1:,} rows and "
                f"{self._bytes + size:,} bytes. Record less"
            )
        self._bytes += size
        self._rows.append(made)

    def refuse_complete(self, method: str) -> None:
        if self._rows:
            raise ConfigurationError(
                f"job.{method}(): this attempt has recorded rows, which are written when the worker ends it. "
                "Let the handler return instead"
            )

    def end(self, outcome: Outcome) -> Outcome:
        """The outcome with the recorded rows; nothing can be added from here on."""
        self._ended = True
        if not self._rows or isinstance(outcome, _UNWRITTEN):
            return outcome
        if type(outcome) is Completed:  # which replace() takes three times as long for
            return Completed(outcome.result, outcome.beside, rows=tuple(self._rows))
        return replace(outcome, rows=tuple(self._rows))
