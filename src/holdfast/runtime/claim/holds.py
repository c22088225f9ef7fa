"""Held keys, as a claimer meets them: when to read them, which keys have become free, and which may have a trial."""

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from uuid import UUID

from ...db.session import Session
from ...model.job import ClaimedJob
from ...store import holds as store
from ...store.holds import DueTrial
from ...store.statement import Flow, Statement

_EVERY = 1.0  # seconds between two reads, while jobs are claimed
_LEAST = 0.01
_KEYS = 1000  # whose hold has ended, at once; the net finds the others
_TRIALS = 500  # holds that wait for a trial, read at once


class Holds:
    """What this worker knows of the holds in one queue. The claims themselves ask the database."""

    def __init__(self, queue: str, session: Session) -> None:
        self._queue = queue
        self._session = session
        self.any = False
        self._trials = False
        self._since: datetime | None = None
        self._look_at = 0.0
        self._ends_at: float | None = None
        self._after: dict[bool, tuple[datetime, str] | None] = {}  # by whether suspects were asked for
        self._open = {False: True}  # the same: one of those that were read last may be claimed

    @property
    def next_in(self) -> float | None:
        """Seconds until a hold ends, or until the trials that could not be claimed are tried again."""
        now = time.monotonic()
        times = [self._ends_at] if self._ends_at is not None else []
        if self._trials and any(self._open.values()):
            times.append(self._look_at)
        return max(min(times) - now, _LEAST) if times else None

    def look_again(self) -> None:
        self._look_at = 0.0

    async def look(self) -> list[str]:
        """The keys whose hold has ended since the last read. Mostly it is not time to read."""
        now = time.monotonic()
        if now < self._look_at and (self._ends_at is None or now < self._ends_at):
            return []
        news = await self._session.run(store.hold_news(self._queue, self._since, _KEYS))
        now = time.monotonic()
        self._look_at = now + _EVERY
        self._ends_at = None if news.next_in is None else now + news.next_in
        self._since, self.any, self._trials = news.now, news.any, news.trials
        return news.ended

    async def trials(
        self, most: int, wanted: Callable[[str], bool], *, ordered: bool, suspects: bool
    ) -> list[DueTrial]:
        """Holds of which a job may be tried now, a part of them each time, and all of them in turn."""
        if not self._trials:
            return []
        after = self._after.get(suspects)
        ask = store.due_trials(self._queue, after, _TRIALS, ordered=ordered, suspects=suspects)
        found = await self._session.run(ask)
        part = after is not None or len(found) == _TRIALS
        self._open[suspects] = part or any(due.open for due in found)
        ready = [due for due in found if due.open and wanted(due.key)][:most]
        if len(ready) == most and most:
            self._after[suspects] = (ready[-1].until, ready[-1].key)
        else:
            self._after[suspects] = (found[-1].until, found[-1].key) if len(found) == _TRIALS else None
        return ready


def try_held(
    queue: str,
    due: Sequence[DueTrial],
    claim: Callable[[Sequence[str]], Statement[list[ClaimedJob]]],
    token: UUID,
) -> Flow[list[ClaimedJob]]:
    """One job of each of these keys, unless another worker was first."""
    keys = yield from store.lock_trials(queue, due)
    if not keys:
        return []
    jobs = yield from claim(keys)
    if jobs:
        yield from store.mark_trials(queue, jobs, token)
    return jobs
