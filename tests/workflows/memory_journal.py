"""A journal in memory, for what the code of a run does with any journal: the model of the storage, without a database."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from holdfast.model.outcome import ErrorText, Outcome
from holdfast.registry import Registry
from holdfast.shapes.workflows.bodies import Result
from holdfast.shapes.workflows.core import Rules
from holdfast.shapes.workflows.drive import Code, drive
from holdfast.shapes.workflows.faults import Evicted
from holdfast.shapes.workflows.journal import (
    CancelAsked,
    Decided,
    History,
    Kind,
    NewChild,
    NewJobs,
    Record,
    Stored,
    Wait,
)
from holdfast.shapes.workflows.outgoing import NewEvent

RUN = UUID(int=14)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class Crash(Evicted):
    """The owner is gone: what was to be written was not."""


@dataclass
class Store:
    """What a database would keep of one run."""

    rows: list[Stored] = field(default_factory=list)
    signals: list[tuple[str, Any]] = field(default_factory=list)  # not taken yet
    era: int = 0
    payload: str | None = None
    clock: datetime = BEGIN
    cancel: bool = False
    shown: str | None = None
    waits: list[Wait] = field(default_factory=list)
    calls: dict[str, NewJobs] = field(default_factory=dict)
    children: dict[str, NewChild] = field(default_factory=dict)
    lost: bool = False
    states: list[str] = field(default_factory=list)  # what it said of compensating
    beats: list[tuple[str, str | None]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)  # attempts
    events: dict[UUID | None, tuple[str, Any]] = field(default_factory=dict)  # the log keeps one of an id

    def written(self) -> list[str]:
        return [row.record.key for row in self.rows]

    def put(self, row: Record) -> Stored:
        self.clock += timedelta(milliseconds=1)
        made = Stored(row, 1, row.ended or self.clock)
        for n, old in enumerate(self.rows):
            if old.record is row:  # written before, by the same owner
                return old
            if old.record.key == row.key:
                assert old.record.outcome in ("retrying", "calling"), f"{row.key} was decided before"
                self.rows[n] = made
                return made
        self.rows.append(made)
        return made


class MemoryJournal:
    """`crash_at`: the owner is lost before its n-th write, or `after` it: it is there, and nobody heard of it."""

    paused = False

    def __init__(self, store: Store, crash_at: int | None = None, *, after: bool = False) -> None:
        self.store = store
        self._after = after
        self.cancelled = CancelAsked()
        self._left = crash_at
        if store.cancel:
            self.cancelled.set()

    def now(self) -> datetime:
        self.store.clock += timedelta(microseconds=1)
        return self.store.clock

    def time(self) -> float:
        return self.now().timestamp()

    async def history(self) -> History:
        s = self.store
        return History("it", RUN, 1, s.era, BEGIN, list(s.rows), s.cancel, (s.states or ["open"])[-1])

    def lost(self) -> bool:
        return self.store.lost

    def begins(self, key: str, kind: Kind, ordinal: int | None, began: float, attempt: int) -> None:
        pass

    def beat(self, key: str, detail: str | None) -> None:
        self.store.beats.append((key, detail))

    def failed(self, key: str, attempt: int, error: ErrorText) -> None:
        self.store.failed.append(f"{key} {attempt}: {error.summary}")

    def _write(self) -> None:
        if self._left is not None:
            if self._left == 0 and not self._after:
                raise Crash
            self._left -= 1

    def _wrote(self) -> None:
        if self._left is not None and self._left < 0:
            raise Crash

    async def record(
        self, rows: Sequence[Record], *, state: str | None = None, events: Sequence[NewEvent] = ()
    ) -> datetime:
        await asyncio.sleep(0)
        self._write()
        self.store.events |= {event.id: (event.type, json.loads(event.data)) for event in events}
        at = self.store.clock
        for row in rows:
            made = self.store.put(row)
        if rows:
            at = made.at
            for n, old in enumerate(self.store.rows):
                if any(old.record is row for row in rows):
                    self.store.rows[n] = old._replace(at=old.record.ended or at)
        self.store.shown = state if state is not None else self.store.shown
        self._wrote()
        return at

    def record_at_end(self, rows: Sequence[Record]) -> None:
        self._write()
        for row in rows:
            self.store.put(row)
        self._wrote()

    async def decide(self, wait: Wait, rows: Sequence[Record] = ()) -> Stored | None:
        await asyncio.sleep(0)
        signals = list(self.store.signals)
        made = self._decision(wait)
        if made is None:
            return None
        try:
            self._write()
        except Crash:
            self.store.signals = signals
            raise
        for row in rows:
            self.store.put(row)
        stored = self.store.put(made)
        self._wrote()
        return stored

    def _decision(self, wait: Wait) -> Record | None:
        s = self.store
        row = Record(wait.key, "sleep", "done", wait.ordinal)
        if wait.kind == "signal":
            row = row._replace(kind="signal")
            for n, (name, value) in enumerate(s.signals):
                if name == wait.name:
                    del s.signals[n]
                    return row._replace(result=json.dumps({"value": value, "sent_at": None, "key": None}))
        if self.cancelled.is_set() and wait.cancellable:
            return row._replace(outcome="cancelled")
        if wait.until is not None and wait.until <= s.clock:
            return row if wait.kind == "sleep" else row._replace(outcome="timed_out")
        return None

    async def receive(self, wait: Wait, rows: Sequence[Record] = ()) -> Stored:
        await asyncio.sleep(0)
        self._write()
        values = [value for name, value in self.store.signals if name == wait.name]
        self.store.signals = [signal for signal in self.store.signals if signal[0] != wait.name]
        for row in rows:
            self.store.put(row)
        made = Record(wait.key, "signal", "done", wait.ordinal, json.dumps(values))
        stored = self.store.put(made)
        self._wrote()
        return stored

    async def child_end(self, name: str) -> tuple[Decided, str | None, str | None] | None:
        return None

    async def changed(self, until: datetime | None, *, resting: bool) -> bool:
        await asyncio.sleep(0)
        if not resting:
            await self.cancelled.wait()
        return False

    async def suspend(self, waits: Sequence[Wait]) -> bool:
        if any(wait.cancellable for wait in waits) and self.cancelled.is_set():
            return False
        self._write()
        self.store.waits = list(waits)
        return True

    async def transact(self, run: Callable[[Any], Awaitable[str]], row: Callable[[str], Record]) -> Stored:
        text = await run(None)
        self._write()
        stored = self.store.put(row(text))
        self._wrote()
        return stored

    async def transact_blocking(self, run: Callable[[Any], str], row: Callable[[str], Record]) -> Stored:
        async def body(tx: Any) -> str:
            return run(tx)

        return await self.transact(body, row)

    async def compensates(self, yes: bool) -> None:
        await asyncio.sleep(0)
        self.store.states.append("compensating" if yes else "open")

    async def start(self, child: NewChild, row: Record) -> Stored:
        self._write()
        self.store.children[row.key] = child
        return self.store.put(row)

    async def call(self, jobs: NewJobs, row: Record) -> None:
        self._write()
        self.store.calls[row.key] = jobs
        self.store.put(row)

    async def continue_as_new(self, payload: str, unseen: Sequence[str] = ()) -> History:
        self._write()
        rows = [row.record for row in self.store.rows if row.record.key in unseen]
        again = [
            (row.key.rpartition("/")[2].partition("#")[0], json.loads(row.result or "{}")["value"])
            for row in rows
        ]
        self.store.signals[:0] = again
        self.store.era += 1
        self.store.rows = []
        self.store.payload = payload
        return await self.history()


def code_of(fn: Callable[..., Any], rules: Rules | None = None) -> Code:
    """A function of wf and no other argument, or of keyword arguments."""
    result = Result(fn, fn.__name__)

    def encode(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        assert not args
        return json.dumps(kwargs)

    return Code(
        fn.__name__,
        lambda wf, arguments: fn(wf, **arguments),
        encode,
        json.loads,
        result.encode,
        rules or Rules(),
        Registry._events,
    )


async def run(
    fn: Callable[..., Any],
    store: Store | None = None,
    crash_at: int | None = None,
    *,
    rules: Rules | None = None,
    verify: bool = True,
    **arguments: Any,
) -> Outcome:
    """One claim."""
    journal = MemoryJournal(store if store is not None else Store(), crash_at)
    return await drive(code_of(fn, rules), journal, arguments, "f1", verify=verify)


async def run_on(
    fn: Callable[..., Any], store: Store, *, rules: Rules | None = None, **arguments: Any
) -> Outcome:
    """Claims, and time that passes, until it ends."""
    from holdfast.model.outcome import Suspended

    for _ in range(1000):
        ended = await run(fn, store, rules=rules, **arguments)
        if not isinstance(ended, Suspended):
            return ended
        times = [wait.until for wait in store.waits if wait.until is not None]
        assert times, f"nothing can wake it: {store.waits}"
        store.clock = max(store.clock, min(times))
    raise AssertionError("it never ends")
