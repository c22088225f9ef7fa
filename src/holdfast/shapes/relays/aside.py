"""Events that wait aside: a key whose message was refused, or that fails for long. They are sent later, in their order.

The rows are failures of the subscription, as those of a projection are. A key waits as long as one of its events does:
later events of the key wait behind it. A spilled one is tried again by itself, a parked one waits for an operator.
Events without a key wait for no other: each is tried again by itself.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

from ...follow import Cursor, LogRow, Note
from ...transport import Confirmed, Outcome, Refused, RetryLater
from .breaker import Breaker
from .link import Link
from .message import Maker, Unsendable
from .spec import Spec

PAGE = 50
SOON = 0.1  # seconds, while a waiting event is not stored yet
_NOBODY = object()
Lane = str | int  # a key, or the position of an event without one


class Aside:
    def __init__(self, spec: Spec, cursor: Cursor, link: Link, maker: Maker, breaker: Breaker) -> None:
        self._spec = spec
        self._cursor = cursor
        self._link = link
        self._maker = maker
        self._breaker = breaker
        self._clock = breaker.clock  # it stops while the destination is unreachable
        self._held: set[str] = set()
        self._due: dict[str | None, float] = {}  # keys that are tried again, and when
        self._again: dict[int, float] = {}  # the same of events without a key, by position
        self._tries: Counter[Lane] = Counter()
        self._since: dict[Lane, float] = {}  # when the first of each began to fail, as seen here
        self._unstored: Counter[str | None] = Counter()  # a million keys may be parked: only what is not zero
        self._trying: object = (
            _NOBODY  # the key that is emptied, and whether one of its events was noted meanwhile
        )
        self._came = False
        self._task: asyncio.Task[None] | None = None

    async def load(self) -> None:
        for key, by_itself in (await self._cursor.waiting_keys()).items():
            if key is not None:
                self._held.add(key)
            if by_itself:
                self._due[key] = 0.0

    def holds(self, key: str) -> bool:
        return key in self._held

    def noted(self, note: Note) -> None:
        """An event that waits. It is stored when the cursor passes it."""
        if note.kind == "skipped":
            return
        key = note.row.key
        self._came |= key == self._trying
        self._unstored[key] += 1
        if key is not None:
            self._held.add(key)
        if note.kind == "spilled":
            due = time.monotonic() + self._spec.retry.delay(1)
            self._due[key] = min(due, self._due.get(key, due))
            self._since.setdefault(lane_of(note.row), self._clock())

    def stored(self, notes: Sequence[Note]) -> None:
        for note in notes:
            if note.kind != "skipped":
                self._unstored[note.row.key] -= 1
                if not self._unstored[note.row.key]:
                    del self._unstored[note.row.key]

    def tasks(self) -> "list[asyncio.Task[None]]":
        return [] if self._task is None else [self._task]

    def next_look(self) -> float | None:
        return min(self._due.values()) if self._due and self._task is None else None

    def go_on(self, *, away: bool) -> None:
        """Try the one that has been due for longest, unless the destination is unreachable: a few that fail slowly are
        always due again, and would keep all others waiting."""
        if self._task is None and not away and self._due:
            key = min(self._due, key=self._due.__getitem__)
            if self._due[key] <= time.monotonic():
                name = f"holdfast relay {self._cursor.name} aside"
                self._task = asyncio.get_running_loop().create_task(self._empty(key), name=name)

    def collect(self) -> None:
        if self._task is not None and self._task.done():
            task, self._task = self._task, None
            task.result()

    async def _empty(self, key: str | None) -> None:
        """Send the waiting events of a key, until none waits, one fails or another key is due. Of those without a key all
        due ones are tried."""
        after = 0
        while True:
            self._trying, self._came, unstored = key, False, self._unstored[key]
            rows = await self._cursor.waiting(key, PAGE, after)
            if not rows:
                if key is None and self._again:
                    self._due[None] = min(self._again.values())
                elif unstored or self._came:
                    self._due[key] = time.monotonic() + SOON
                else:  # nothing can have been stored since: the key is free again
                    self._forget(key)
                return
            if key is None:
                after = rows[-1][1].position
                rows = [one for one in rows if self._again.get(one[1].position, 0.0) <= time.monotonic()]
            if not await self._send(key, rows):
                return
            if key is not None:  # a page of each in turn
                now = self._due[key] = time.monotonic()
                if min(self._due.values()) < now:
                    return

    def _forget(self, key: str | None) -> None:
        self._due.pop(key, None)
        if key is not None:
            self._held.discard(key)

    async def _send(self, key: str | None, rows: Sequence[tuple[str, LogRow]]) -> bool:
        """False: no more of them for now."""
        done: list[int] = []
        notes: list[Note] = []
        go_on = True
        for kind, row in rows:
            if kind == "parked":
                self._due.pop(key, None)
                go_on = False
                break
            sent_at = time.monotonic()
            outcome = await self._outcome(kind, row)
            if isinstance(outcome, Confirmed):
                done.append(row.position)
                self._begin_anew(row)
                self._breaker.confirmed(lane_of(row))
                await self._breaker.worked()
                continue
            if isinstance(outcome, RetryLater):
                outcome = self._breaker.judged(lane_of(row), outcome)
                if self._breaker.is_open and outcome.scope == "destination":  # it was the trial
                    await self._breaker.failed(outcome, time.monotonic(), sent_at, [lane_of(row)])
            note, go_on = self._verdict(key, row, outcome)
            notes.append(note)
            if not go_on:
                break
        await self._cursor.settle_waiting(done, notes)
        return go_on

    async def _outcome(self, kind: str, row: LogRow) -> Outcome | str:
        if kind == "gone":
            return "the log has it no more"
        try:
            message = self._maker.message(row, late=True)
        except Unsendable as error:
            return error.why
        return (await self._link.send([message]))[0]

    def _verdict(self, key: str | None, row: LogRow, outcome: Outcome | str) -> tuple[Note, bool]:
        """The record of an event that was not sent, and whether the next of its key may be."""
        lane = lane_of(row)
        if isinstance(outcome, str):
            self._begin_anew(row)
            return Note(row, "skipped", outcome), True
        if isinstance(outcome, RetryLater) and not self._gives_up(lane, outcome):
            self._tries[lane] += 1
            wait = self._spec.retry.delay(self._tries[lane]) if outcome.after is None else outcome.after
            again = time.monotonic() + min(wait, 300.0)
            if alone := key is None and outcome.scope == "key":
                self._again[row.position] = again
            else:
                self._due[key] = again
            return Note(row, "spilled", outcome.reason), alone
        assert not isinstance(outcome, Confirmed)
        error = said(outcome, self._spec)
        self._begin_anew(row)
        if key is None or row.data is None or self._spec.refused == "skip":
            return Note(row, "skipped", error), True
        self._due.pop(key, None)
        return Note(row, "parked", error), False

    def _gives_up(self, lane: Lane, outcome: RetryLater) -> bool:
        longest = self._spec.retry_for
        if outcome.scope != "key":  # while the destination is unreachable nothing is counted
            self._since.pop(lane, None)
            return False
        failed_for = self._clock() - self._since.setdefault(lane, self._clock())
        return longest is not None and failed_for >= longest

    def _begin_anew(self, row: LogRow) -> None:
        """The next of its key has not failed yet."""
        self._breaker.forget(lane_of(row))
        self._tries.pop(lane_of(row), None)
        self._since.pop(lane_of(row), None)
        self._again.pop(row.position, None)


def lane_of(row: LogRow) -> Lane:
    return row.position if row.key is None else row.key


def said(outcome: RetryLater | Refused, spec: Spec) -> str:
    """Why a message was not sent, for operators."""
    if isinstance(outcome, Refused):
        return f"{outcome.reason}: {outcome.detail}"
    return f"given up after {spec.retry_for:g} s of failures: {outcome.reason}"
