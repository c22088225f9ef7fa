"""The scheduler: a service of every worker. It stores the schedules of its code and fires due ones.

Any number of workers may run it: a schedule is fired by the worker that locks it, and a slot by the one that writes its
firing. The clock is the database's. A worker fires the operators' schedules and those of its own code, so a schedule that
was removed from the code stops with the last worker that has it.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Sequence
from datetime import datetime

from ... import telemetry
from ...db.database import Database
from ...errors import DatabaseUnavailable
from ...model.text import storable
from ...runtime.pulse import Pulse
from ...runtime.service import Service
from ...store.wake import Question
from . import store
from .spec import Fired, Spec

DECLARE_EVERY = 30.0
STALE = 120.0  # seconds after which a declaration that was not repeated belongs to no live worker
_LONGEST = 5.0  # between two reads: a schedule may have been added
_RETRY = 5.0  # after a schedule failed
_AT_ONCE = 1000


class Scheduler(Service):
    name = "schedules"

    def __init__(self, database: Database, specs: Sequence[Spec]) -> None:
        super().__init__()
        self._settings = database.settings
        self._session = database.session("schedules")
        self._specs = {spec.name: spec for spec in specs}
        self._declared_at: float | None = None
        self._told: set[tuple[str, str]] = set()
        self._failed: dict[str, float] = {}  # name -> when to try again
        self._working = asyncio.Lock()
        self._due_at: float | None = None  # reported by a pulse
        self.question = Question(store.DUE_IN, (list(self._specs),))

    def on_answer(self, answer: float | None) -> None:
        """The pulse reports in how many seconds a schedule is due. None: there is none."""
        self._due_at = None if answer is None else time.monotonic() + answer
        if answer is not None:
            self.wake()

    async def tick(self) -> float:
        if (
            self._declared_at is not None
            and self.pulse is not None
            and (quiet := self._quiet(self.pulse)) > 0
        ):
            return quiet
        async with self._working:
            await self._declare()
            more = await self._fire_due()
            ahead = await self._session.run(store.wait(list(self._specs)))
        # What is still due belongs to another worker, waits for a job to end, or failed: the poll is soon enough.
        pause = min(_LONGEST, self._settings.poll if more is None else _LONGEST, ahead or _LONGEST)
        return 0.0 if more else max(pause, 0.01)

    def _quiet(self, pulse: Pulse) -> float:
        """Seconds for which the pulse of a sleeping worker says that nothing is due, and nothing has to be declared."""
        now = time.monotonic()
        ends = [now + pulse.left]
        if self._due_at is not None:
            ends.append(self._due_at)
        if self._specs and self._declared_at is not None:
            ends.append(self._declared_at + DECLARE_EVERY)
        return min(ends) - now

    async def catch_up(self) -> bool:
        """True: a schedule fired. An outage is left to the next tick."""
        try:
            async with self._working:
                await self._declare()
                return bool(await self._fire_due())
        except DatabaseUnavailable:
            return False

    async def _declare(self) -> None:
        """At the start and regularly: others see that this code is alive, and the effects of a rollback are corrected."""
        if self._declared_at is not None and time.monotonic() - self._declared_at < DECLARE_EVERY:
            return
        specs = list(self._specs.values())
        if specs:
            differs = await self._session.flow(lambda: store.touch(specs, DECLARE_EVERY / 2))
            for name in differs:
                done = await self._session.flow(functools.partial(store.declare, self._specs[name], STALE))
                self._say_declared(name, done)
        self._declared_at = time.monotonic()

    def _say_declared(self, name: str, done: store.Declared) -> None:
        if (name, done) in self._told:
            return
        self._told.add((name, done))
        why = {
            "older": "live workers declare a newer one",
            "taken": "an operator added one of this name, which stays",
        }
        level = logging.WARNING if done in why else logging.INFO
        telemetry.emit(
            "schedule.declared", level=level, schedule=name, outcome=done, reason=why.get(done, "")
        )

    async def _fire_due(self) -> bool | None:
        """True: a schedule fired. None: none did, although one is due."""
        now = time.monotonic()
        self._failed = {name: until for name, until in self._failed.items() if until > now}
        due = await self._session.run(store.due(list(self._specs), list(self._failed), _AT_ONCE))
        fired = [await self._fire(name) for name in due]
        if any(f is not None and (f.fired or f.more) for f in fired):
            return True
        return None if due or self._failed else False

    async def _fire(self, name: str) -> Fired | None:
        grace = self._settings.schedule_grace
        try:
            fired = await self._session.flow(functools.partial(store.fire, name, grace))
        except DatabaseUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 one schedule that cannot fire stops no other
            self._failed[name] = time.monotonic() + _RETRY
            problem = storable(f"{error}", 1000)
            telemetry.emit("schedule.failed", level=logging.ERROR, schedule=name, error=problem)
            await self._session.run(store.note_problem(name, problem))
            return None
        if fired is not None:
            _say_fired(fired)
        return fired

    async def finish(self) -> None:
        await self._session.close()


def _say_fired(f: Fired) -> None:
    for slot, job in f.fired:
        telemetry.emit("schedule.fired", schedule=f.name, task=f.task, slot=_text(slot), job=job)
    for slot in f.skipped:
        telemetry.emit(
            "schedule.skipped", schedule=f.name, task=f.task, slot=_text(slot), reason="a job of it is live"
        )
    if f.kept is not None:
        telemetry.emit("schedule.waits", schedule=f.name, task=f.task, slot=_text(f.kept))
    if f.passed is not None:
        telemetry.emit(
            "schedule.missed", level=logging.WARNING, schedule=f.name, task=f.task, since=_text(f.passed)
        )


def _text(slot: datetime) -> str:
    return slot.isoformat()
