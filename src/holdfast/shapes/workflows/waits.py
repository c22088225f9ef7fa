"""The waits of all branches of a run together: the run rests, or is put away, when no other part of it is running."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from ... import telemetry
from ...model.outcome import Outcome, Released, Snoozed, Suspended
from ...model.text import describe
from .faults import Evicted
from .handed_on import HandedOn
from .journal import Journal, Stored, Wait

AGAIN = 5.0  # seconds until a refused run is tried again


def interrupted(error: BaseException) -> Outcome:
    """How the job of a run ends that leaves memory with this. A lost run is released at once; if the database refused it,
    it may refuse it again."""
    said = describe(error).summary
    if isinstance(error, Evicted):
        return Released(said)
    telemetry.emit("workflow.interrupted", level=logging.ERROR, error=said, next_try_in=AGAIN)
    return Snoozed(AGAIN)


class Waiting(Protocol):
    """The run, as its waits see it."""

    journal: Journal
    runnable: int
    handed: HandedOn

    @property
    def sticky(self) -> float: ...
    def busy(self, count: int = 1) -> None: ...
    def idle(self) -> None: ...
    def stop(self, raised: BaseException, outcome: Outcome) -> None: ...
    async def decide(self, wait: Wait) -> Stored | None: ...
    async def flush(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Open:
    wait: Wait
    done: "asyncio.Future[Stored | None]"
    cancel: bool = False  # a retry that a cancel ended


class Waits:
    def __init__(self, run: Waiting) -> None:
        self._run = run
        self._open: list[_Open] = []
        self._changed = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None

    def poke(self) -> None:
        """The awaited events have changed, or nothing but waits is left."""
        self._changed.set()

    async def until_decided(self, wait: Wait) -> Stored:
        """The record of the event: taken at once if it has come."""
        row = await self._run.decide(wait)
        while row is None:
            row = await self._wait(_Open(wait, asyncio.get_running_loop().create_future()))
        return row

    async def until_due(self, wait: Wait) -> bool:
        """The time of a retry. False: a cancel came first."""
        entry = _Open(wait, asyncio.get_running_loop().create_future())
        if not self._retry_is_due(entry):
            await self._wait(entry)
        return not entry.cancel

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})

    async def _wait(self, entry: _Open) -> Stored | None:
        self._open.append(entry)
        self._run.idle()
        self.poke()
        if self._watch is None or self._watch.done():
            self._watch = asyncio.get_running_loop().create_task(self._watching())
        try:
            return await entry.done
        except asyncio.CancelledError:
            if not entry.done.done() or entry.done.cancelled():
                self._run.busy()
            raise
        finally:
            if entry in self._open:
                self._open.remove(entry)

    def _resolve(self, entry: _Open, row: Stored | None) -> None:
        """Counted as busy from here on, and not only when its code continues: otherwise the run could be put away before."""
        if entry in self._open:
            self._open.remove(entry)
        if not entry.done.done():
            self._run.busy()
            entry.done.set_result(row)

    async def _watching(self) -> None:
        try:
            while self._open:
                self._changed.clear()
                resting = self._run.runnable <= 0
                if resting and self._long():
                    came = False
                else:
                    result = await self._first_of(resting)
                    if result is None:
                        continue
                    came = result
                if not came and resting:
                    if await self._goes_on():
                        continue
                    if await self._run.journal.suspend([entry.wait for entry in self._open]):
                        self._run.stop(Evicted(), Suspended())
                        return
                await self._decide_all()
        except asyncio.CancelledError:
            raise
        except (Exception, Evicted) as error:  # noqa: BLE001 the code never sees storage errors
            self._run.stop(Evicted(), interrupted(error))

    async def _goes_on(self) -> bool:
        """Before the run is put away: writes are finished, and no wait has its event in memory."""
        await self._run.flush()
        if self._run.runnable <= 0 and any(self._run.handed.may_have(entry.wait) for entry in self._open):
            await self._decide_all()
        return self._run.runnable > 0

    def _long(self) -> bool:
        """Whether all ends are known, and none is soon: then resting is useless."""
        soon = self._run.journal.now() + timedelta(seconds=self._run.sticky)
        return all(
            entry.wait.kind in ("sleep", "retry") and entry.wait.until is not None and entry.wait.until > soon
            for entry in self._open
        )

    async def _first_of(self, resting: bool) -> bool | None:
        """The result of changed(). None: read again, the waits have changed."""
        ends = [entry.wait.until for entry in self._open if entry.wait.until is not None]
        loop = asyncio.get_running_loop()
        news = loop.create_task(_plain(self._run.journal.changed, min(ends, default=None), resting))
        poked = loop.create_task(self._changed.wait())
        try:
            await asyncio.wait({news, poked}, return_when=asyncio.FIRST_COMPLETED)
            return news.result() if news.done() else None
        finally:
            for task in (news, poked):
                task.cancel()
            await asyncio.wait({news, poked})

    async def _decide_all(self) -> None:
        for entry in list(self._open):
            if entry.wait.kind == "retry":
                if self._retry_is_due(entry):
                    self._resolve(entry, None)
            elif entry in self._open and (row := await self._run.decide(entry.wait)) is not None:
                self._resolve(entry, row)

    def _retry_is_due(self, entry: _Open) -> bool:
        wait, journal = entry.wait, self._run.journal
        entry.cancel = wait.cancellable and journal.cancelled.is_set()
        return entry.cancel or wait.until is None or wait.until <= journal.now()


async def _plain(changed: Callable[..., Any], until: Any, resting: bool) -> bool:
    return bool(await changed(until, resting=resting))
