"""Services of every worker: one turns pages of a log that nobody reads, one runs the declared subscriptions."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import Any
from uuid import uuid4

from ... import telemetry
from ...db.database import Database
from ...errors import DatabaseError, DatabaseUnavailable, ForeignLog
from ...model.text import storable
from ...runtime.service import Service
from ...store.wake import Question
from ...tasks.taskset import TaskSet
from . import store
from .consume import Consume
from .declare import Declared, declared
from .follow import FollowedLog, now
from .log import Log
from .project import Project
from .rebuild import Builder
from .reshard import begin_reshards
from .runner import Effect, Runner
from .store import Owned, Owner

_UNREAD = 10.0  # seconds between two pages of a log that nobody here reads
_LEAST = 0.05
_AGAIN = 60.0  # seconds after which the declarations of the code are written again
_SOON = 0.25  # seconds between two searches for subscriptions without an owner
_WATCH_AGAIN = 0.5  # seconds after which pages are turned again that could not be
_LAST_BATCH = 5.0  # seconds that a batch may take to its end when the worker stops


class Pages(Service):
    """Turns a page regularly, so that a log without subscribers does not end as one huge page."""

    name = "pages"

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._session = database.session("pages")
        self._turned: int | None = None  # the reply before the last turn
        self._told: int | None = None
        self._is_due = False
        self.question = Question(store.SETTLED, ())

    def on_answer(self, answer: int | None) -> None:
        """Like Log.on_answer(): while a publishing transaction is open, each reply counts, and the first one after it."""
        if answer is None or answer != self._turned:
            self._told, self._is_due = answer, True
            self.wake()

    async def tick(self) -> float:
        """Without a pulse, because the worker is busy, it runs by itself."""
        sleeps = self.pulse is not None and self.pulse.lasts
        if self._is_due or not sleeps:
            told, self._is_due = self._told, True  # still, if it fails
            await self._session.run(store.turn_page())
            self._turned, self._is_due = told, self._told != told
        return max(self.pulse.left, _LEAST) if sleeps and self.pulse is not None else _UNREAD

    async def finish(self) -> None:
        await self._session.close()


class Subscriber(Service):
    """Owns its share of the subscriptions in this code, and runs them."""

    name = "subscriptions"
    topic = store.TOPIC

    def __init__(self, database: Database, subscriptions: Sequence[Declared], tasks: TaskSet) -> None:
        super().__init__()
        self._database = database
        self._session = database.session("subscriptions")
        self._declared = {d.name: d for d in subscriptions}
        rules = tasks.queue_rules()
        self._keyed = {name for name, rule in rules.items() if rule.keyed}
        settings = database.settings
        self._lease = settings.dead_after
        self._every = settings.heartbeat
        self._asleep = max(
            settings.heartbeat, 0.6 * settings.dead_after
        )  # between two renewals, with a pulse
        self._last_batch = min(settings.drain, _LAST_BATCH)
        self._token = uuid4()
        longest = max(settings.poll, settings.heartbeat)
        self._log = Log(self._session, self._me, longest, list(self._declared), self._look_soon)
        self._runners: dict[
            tuple[str, int, int], tuple[Runner | Builder | FollowedLog, asyncio.Task[None]]
        ] = {}
        self._watch: asyncio.Task[None] | None = None
        self._resharding: asyncio.Task[None] | None = None
        self._declared_at: float | None = None
        self._looked_at = 0.0
        self._soon: asyncio.TimerHandle | None = None  # the next search for subscriptions without an owner
        self.question = Question(store.SETTLED, ())

    def _me(self) -> str:
        return self.worker()

    def on_answer(self, answer: int | None) -> None:
        self._log.on_answer(answer)

    def heard(self) -> None:
        self._log.ring()

    def listening(self, hears: bool) -> None:
        self._log.hears = hears
        self._log.ring()

    def _look_soon(self) -> None:
        """One of our subscriptions has no owner. Another worker may be due to take it, so the question is asked seldom."""
        if self._soon is None:
            pause = max(0.0, self._looked_at + _SOON - time.monotonic())
            self._soon = asyncio.get_running_loop().call_later(pause, self.wake)

    async def tick(self) -> float:
        await self._declare()
        await self._own()
        if self._watch is None or self._watch.done():
            self._watch = self._begin("watch", self._keep_watch())
        return self._asleep if self.pulse is not None and self.pulse.lasts else self._every

    async def _keep_watch(self) -> None:
        """Turn pages for ever, also after outages: all readers wait for it."""
        while True:
            try:
                await self._log.watch()
            except Exception as error:  # noqa: BLE001 any error is reported, and the next try may succeed
                level = logging.WARNING if isinstance(error, (DatabaseError, ForeignLog)) else logging.ERROR
                problem = f"{type(error).__name__}: {error}"
                telemetry.emit("pages.failed", level=level, error=problem, next_try_in=_WATCH_AGAIN)
                await asyncio.sleep(_WATCH_AGAIN)

    async def _declare(self) -> None:
        """Register the subscriptions of the code in the database. Repeated regularly: one may have been removed, or the code
        that has changed one may be gone."""
        now = time.monotonic()
        begins = self._declared_at is None
        if self._declared_at is not None and now - self._declared_at < _AGAIN:
            return
        await self._log.turn()
        for d in self._declared.values():
            what = store.subscribe(
                d.name,
                d.kind,
                d.patterns,
                d.start,
                d.shards,
                begins=begins,
                lease=2 * self._lease,
                version=d.version,
                hold=d.follower is None or d.follower.hold,
            )
            if await self._session.run(what):
                telemetry.emit(
                    "subscription.made", subscription=d.name, patterns=", ".join(d.patterns), start=d.start
                )
            elif begins and d.apply is not None:
                await self._session.run(store.want_shards(d.name, d.shards, d.version))
        self._declared_at = now

    def _reshard(self, taken: Sequence[Owned]) -> None:
        """Beside the ticks: a barrier waits for batches at work."""
        if self._resharding is not None and not self._resharding.done():
            return
        wanted = {o.name for o in taken if o.reshards and o.barrier is None and o.status == "active"}
        if wanted:
            self._resharding = self._begin("shards", begin_reshards(self._database, sorted(wanted)))

    async def _own(self) -> None:
        """Renew, take free ones, release lost ones and those above our share."""
        self._looked_at = time.monotonic()
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        declared = [(d.name, d.patterns) for d in self._declared.values()]
        versions = [d.version for d in self._declared.values()]
        owner = Owner(declared, self._token, self.worker(), self._lease, 2 * self._every, versions)
        until = now() + self._lease
        taken = await self._session.run(store.own(owner))
        self._reshard(taken)
        kept = {o.key: False for o in taken}
        at_work = {key for key, (_, task) in self._runners.items() if not task.done()}
        if at_work - kept.keys() or any(
            o.crowded for o in taken
        ):  # a batch holds it, it is lost, or it is to be released
            kept = await self._session.run(store.owned(owner))
        for key, (runner, task) in list(self._runners.items()):
            if task.done():
                del self._runners[key]
            elif key not in kept:
                task.cancel()
            elif kept[key]:
                await runner.leave()
        for o in taken:
            found = self._runners.get(o.key)
            if found is not None and isinstance(found[0], FollowedLog):
                found[0].renewed(until)
            if o.key in kept and found is None:
                runner = self._runner(o, until)
                self._runners[o.key] = (runner, self._begin(o.name, self._run(runner)))

    def _runner(self, o: Owned, until: float) -> Runner | Builder | FollowedLog:
        d = self._declared[o.of]
        if d.follower is not None:
            return FollowedLog(self._database, self._log, d.follower, o, self._lease, until)
        apply = d.apply
        if apply is not None and o.replay_of is not None:
            return Builder(self._database, apply, o, self._lease)
        return Runner(self._database, self._log, self._effect(o), o)

    def _effect(self, o: Owned) -> Effect:
        d = self._declared[o.of]
        if d.apply is not None:
            return Project(self._database, d.apply, o, self._lease)
        assert d.task is not None
        keyed = d.task.settings.queue in self._keyed
        return Consume(self._database, d.task, d.parameter, o, self._lease, keyed)

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        return asyncio.get_running_loop().create_task(work, name=f"holdfast subscription {name}")

    async def _run(self, runner: Runner | Builder | FollowedLog) -> None:
        """A runner that ends is started again by the next tick, unless its subscription is not ours any more."""
        pause = 0.1
        while not runner.left.is_set():
            before = runner.moved
            try:
                await runner.run()
                break
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 whatever it is, the next try may succeed
                pause = 0.1 if runner.moved > before else min(pause * 2, 5.0)
                runner.failed = True
                await self._say_trouble(runner.owned, error, pause)
                await runner.rest(pause)
        if runner.left.is_set():
            await self._session.run(store.release(self._token, self.worker(), runner.owned))
            telemetry.emit("subscription.left", level=logging.DEBUG, subscription=runner.owned.name)
        self.wake()

    async def _say_trouble(self, owned: Owned, error: Exception, pause: float) -> None:
        known = isinstance(error, DatabaseUnavailable)
        problem = f"{type(error).__name__}: {error}"
        telemetry.emit(
            "subscription.failed",
            level=logging.WARNING if known else logging.ERROR,
            subscription=owned.name,
            error=problem,
            next_try_in=pause,
        )
        if not known:
            with contextlib.suppress(DatabaseError):
                await self._session.run(store.note_trouble(owned, storable(problem, 2000)))

    async def catch_up(self) -> bool:
        """For a worker that ends when it is idle: all that is committed is delivered."""
        try:
            await self.tick()
            last = await self._log.turn()
            before = sum(runner.moved for runner, _ in self._runners.values())
            while any(  # noqa: ASYNC110 several runners, each at its own pace
                runner.is_behind(last) and not task.done() for runner, task in self._runners.values()
            ):
                await asyncio.sleep(0.005)
            return sum(runner.moved for runner, _ in self._runners.values()) > before
        except (DatabaseUnavailable, ForeignLog):
            return False

    async def finish(self) -> None:
        """A running batch may commit; then all of them are free for other workers at once."""
        for runner, _ in self._runners.values():
            await runner.leave()
        running = [task for _, task in self._runners.values()]
        if running:
            await asyncio.wait(running, timeout=self._last_batch)
        tasks = running + [task for task in (self._watch, self._resharding) if task is not None]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
        with contextlib.suppress(DatabaseUnavailable):
            await self._log.get_up()
            await self._session.run(store.release(self._token, self.worker()))
        self._runners.clear()
        await self._session.close()


def services(database: Database, tasks: TaskSet) -> list[Service]:
    """A worker whose code subscribes to something turns the pages while it reads."""
    subscriptions = declared(tasks)
    if not subscriptions:
        return [Pages(database)]
    return [Subscriber(database, subscriptions, tasks)]
