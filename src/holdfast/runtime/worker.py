"""The worker: claim, execute, settle.

run         the story: claim what free slots need, start it, pause, and in the end drain
_run_one    one job from slot to outcome
Claimers    which jobs are next                         (claim/)
Starter     each in a task of its own, in a free slot   (start.py)
Early       jobs of a rate wait for their moment        (early.py, pace.py)
Lanes       jobs of one stream one after the other      (lanes.py)
Ring        whose keys it looks after                   (ring.py)
Batches     jobs that gather to be run in one call      (batches.py, calls.py)
Suspects    jobs that were in two deaths run apart      (claim/suspects.py)
Breakers    one job is tried while a breaker is open    (breakers.py)
Settler     writes outcomes in natural batches          (settle.py)
Renewal     keeps leases, in its own thread             (renew.py, lease_events.py)
Sweeper     takes back what dead workers left behind    (sweep.py)
Tally       counts what was finished, minute by minute  (tally.py)
Notify      hears that there is something to do         (notify.py)
Sleep       how an idle worker waits for that           (sleep.py)
Drainer     stops without losing anything               (drain.py)
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Sequence

from .. import telemetry
from ..db.database import Database
from ..db.faults import BadRow, Contended, LockTimeout
from ..errors import DatabaseUnavailable
from ..model.job import ClaimedJob
from ..model.outcome import (
    Cancelled,
    Completed,
    Held,
    Lost,
    Outcome,
    Released,
    SettledElsewhere,
    Settlement,
    settlement_of,
)
from ..model.state import COMPLETED, LOST
from . import report
from .batches import Batches
from .breakers import Breakers
from .calls import run_together
from .claim.claimer import Ask, Claimer
from .claim.notified import NotifiedClaimer
from .claim.queues import Queues
from .claim.suspects import SuspectClaimer, Suspects
from .claim.trials import TrialClaimer
from .drain import drain
from .execute import Executor, Middleware, Processes, unforeseen
from .handler import Handlers
from .inflight import InFlight, Running
from .lanes import Lanes
from .lease_events import renewal_for
from .membership import Membership
from .notify import Notify
from .options import WorkerOptions
from .outage import ending_pauses
from .renew import RenewalThread
from .ring import Ring
from .service import Service
from .settle import Settler
from .side_tasks import SideTasks
from .sleep import DROWSY, Nap, Sleep
from .slots import Slots
from .start import Starter
from .sweep import Sweeper
from .tally import Tally

_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 1.0  # while the database is away; the first session that reaches it ends all pauses
_STALE = 2.0
_UNSETTLED = 4000  # outcomes that wait to be written: no more claims until they are fewer


class Worker:
    def __init__(
        self,
        database: Database,
        handlers: Handlers,
        options: WorkerOptions,
        middleware: Sequence[Middleware] = (),
        processes: Processes | None = None,
        services: Sequence[Service] = (),
    ) -> None:
        self.settings = database.settings
        self._reach = database.reach
        self._until_idle = options.until_idle
        self.services = services  # of the shapes on top; the first to stop
        self.membership = Membership(
            database,
            queues=list(options.leases),
            handlers=handlers,
            concurrency=options.concurrency,
            release=options.release,
        )
        me = self._identity  # it changes when a fenced worker starts over
        self.inflight = InFlight()
        self.claimer = Queues(database, handlers, options.leases, options.rules, self.inflight)
        self.lanes = Lanes(options.rules)
        # One that runs until nothing is due looks after everything, also after what a dead neighbour left.
        rings = [] if options.until_idle else self.claimer.ringed
        self.ring = Ring(database, rings, me, self._look_after)
        self.executor = Executor(database, handlers, me, middleware, processes=processes)
        self.slots = Slots(options.concurrency, database.settings.prefetch, self.executor.threads)
        session, sweep = self.membership.session, database.settings.sweep
        self.breakers = Breakers(handlers, session, sweep, self._breaker_closed)
        self.settler = Settler(database, me, self._settled, self.breakers.changed)
        self.tally = Tally(self.membership.session)
        self.sweeper = Sweeper(database, self.look_again, self.tally.buried, me, options.prunes)
        lease = max(options.leases.values())
        self.renewal = RenewalThread(lambda: renewal_for(self, database, lease), self.inflight)
        self.sleep = Sleep(
            self.membership.session,
            me,
            list(options.leases),
            handlers,
            self.settings.poll,
        )
        self.notify = Notify(
            database, self.membership.session, list(options.leases), self.sleep, self.look_again
        )
        self.suspects = Suspects(session, self.settings, options.children, options.concurrency)
        self._notified = NotifiedClaimer(self.claimer, self.sleep.told)
        self._suspect_claimer = SuspectClaimer(self.claimer)
        self._trials = TrialClaimer(self.claimer, self.breakers, self.suspects)
        self.batches = Batches(handlers, self._wake_in, self.settings.claim_bytes)
        self._pause = _FIRST_PAUSE
        self._heard = True  # somebody hears of each start
        self._wake = asyncio.Event()
        self.stopping = asyncio.Event()
        self.hurry = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        doubt, closed = self.lanes.doubter(self.settings.dead_after), self.stopping.is_set
        pace = self.claimer.pace
        self.starter = Starter(self.slots, self._run_one, doubt, self.end_unstarted, closed, pace)
        self.ready = self.starter.ready
        self.aside = SideTasks()
        self.ticked_at = time.monotonic()  # when the claim loop last came round

    def _identity(self) -> str:
        return self.membership.id

    def _wake_in(self, seconds: float) -> None:
        self.loop.call_later(seconds, self._wake.set)

    def stop(self) -> None:
        """Stop claiming and drain; called again, drain at once."""
        if self.stopping.is_set():
            self.hurry.set()
        self.stopping.set()
        self._wake.set()

    async def run(self) -> None:
        await self.membership.register()
        try:
            await self._start_services()
            with ending_pauses(self, self._reach):
                await self._work()
        finally:
            await drain(self)
            self.executor.close()

    async def _start_services(self) -> None:
        self.renewal.start()
        self.settler.start()
        self.sweeper.start()
        self.tally.start()
        await self.ring.begin()
        self.ring.start()
        if self.settings.notify and self.settings.poll > DROWSY and not self._until_idle:
            self.notify.start()
        for service in self.services:
            service.start()
        self.aside(self.breakers.close_unwatched())

    async def _work(self) -> None:
        while not self.stopping.is_set():
            self._wake.clear()
            self.ticked_at = time.monotonic()
            claimed = await self._claim()
            if self._until_idle and claimed == 0 and self.slots.free > 0 and not self.batches.due:
                self.batches.hurry()
            self._start_ready()
            self._hand_back_stale()
            if self._until_idle and claimed == 0 and await self._is_idle():
                break
            await self._rest(claimed)

    async def _claim(self) -> int | None:
        """Claim for the free slots. None: it did not work; an outage is waited out, never an end."""
        try:
            return await self._claim_new() or await self._claim_all_kinds()
        except (DatabaseUnavailable, BadRow, Contended, LockTimeout) as error:
            self._pause = min(max(self._pause * 2, 0.5), _LONGEST_PAUSE) * random.uniform(0.8, 1.0)  # noqa: S311
            telemetry.emit("claim.failed", level=logging.WARNING, error=str(error), next_try_in=self._pause)
            return None

    async def _claim_new(self) -> int:
        """What a notification came for."""
        want = self._want(len(self.ready))
        return len(
            await self._take(self._notified, Ask(self.membership.id, want, waiting=self._idle_bytes()))
        )

    async def _claim_all_kinds(self) -> int:
        """Suspects get their part, then the trial of a breaker, then others, then suspects what is left."""
        await self._claim_suspects(spare=False)
        if self.breakers.due(self.slots.free - len(self.ready)):
            await self._take(self._trials, Ask(self.membership.id, 1))
        waiting = len(self.ready) + self.batches.due
        if not (want := self._want(waiting)):
            return 0
        free = self.slots.free - waiting - len(self.starter.early)
        ask = Ask(self.membership.id, want, free, self.slots.run, self._idle_bytes())
        if not (jobs := await self._take(self.claimer, ask)):
            await self._claim_suspects(spare=True)
        return len(jobs)

    async def _claim_suspects(self, *, spare: bool) -> None:
        """As many as they have room for now. `spare`: other jobs were asked for, and none waits for the free slots."""
        while room := self.suspects.due(self._free_for_suspects(), spare=spare):
            if not await self._take(self._suspect_claimer, Ask(self.membership.id, room)):
                return

    def _free_for_suspects(self) -> int:
        """Quick jobs that wait here for a slot would keep suspects out for as long as there is a backlog, so one suspect at
        a time joins them: its slot comes in a moment."""
        soon = 1 if self.ready and not self.slots.blocked else 0
        return max(soon, self.slots.free - len(self.ready))

    async def _take(self, claimer: Claimer, ask: Ask) -> list[ClaimedJob]:
        """Claim, and hold what comes: it waits for a slot, for company, or for the one before it."""
        began = time.monotonic()
        jobs = await claimer.claim(ask)
        if not jobs and claimer is not self.claimer:
            return jobs
        self._heard = telemetry.audible(logging.DEBUG)
        self.executor.look()
        held = self.claimer.pace.mark(self.inflight.add(jobs, began))
        suspects = (
            [r for r in held if r.claimed.suspect] if claimer in (self._suspect_claimer, self._trials) else []
        )
        self.suspects.took(suspects)
        admitted = self.lanes.admit(held)
        alone = claimer is self._suspect_claimer or suspects
        self.ready.extend(self.batches.alone(admitted) if alone else self.batches.gather(admitted))
        if jobs and not alone and claimer is not self._trials:
            self.suspects.others_came()
        return jobs

    def _want(self, waiting: int) -> int:
        if self.settler.pending >= _UNSETTLED:
            return 0
        if self._has_its_bytes:
            return max(0, self.slots.free - waiting)  # each claim brings one job of a queue
        return self.slots.want(waiting, self.batches.wish)

    def _idle_bytes(self) -> int:
        return self.inflight.idle_bytes(self.settings.claim_bytes // 2)

    @property
    def _has_its_bytes(self) -> bool:
        """What waits here comes to as much as may."""
        return self._idle_bytes() >= self.settings.claim_bytes

    def _start_ready(self) -> None:
        if self.stopping.is_set():
            return  # claimed while the signal came: the drain hands it back
        while self.slots.free > 0 and (group := self.batches.next()) is not None:
            self.aside(run_together(self, group, self.slots.started()), self.starter.context)
        self.starter.start()

    def end_unstarted(self, running: Running) -> None:
        """Lost or cancelled while it waited here."""
        self.conclude(running, Lost() if running.stop == LOST else Cancelled("cancelled before it ran"))

    def end_abandoned(self, running: Running) -> None:
        """Its task is over and has left no outcome: somebody cancelled it before it began, and so before the guard."""
        if running.abandoned and running.call is None:  # a call looks after its own
            if running.task is not None and running.task.cancelled():
                self.slots.finished(running.started_at)
            self.conclude(running, Released("not started"))

    def _hand_back_stale(self) -> None:
        """A prefetched job must not wait here behind long ones while another worker is idle."""
        if self.slots.blocked and (stale := self.starter.stale(_STALE) + self.batches.stale(_STALE)):
            self.slots.expect_long()
            self._hand_back(stale)
        elif self.slots.free > 0 and self.lanes and self._has_its_bytes:
            self._hand_back(self.lanes.stale(_STALE))  # their turn is far, and their bytes keep others out

    def _hand_back(self, unstarted: Sequence[Running]) -> None:
        for running in unstarted:
            self.conclude(running, Released("not started"))

    async def _run_one(self, running: Running) -> None:
        try:
            if self._heard:
                report.started(running, self.membership.id)
            outcome = await self.executor.execute(running)
            if running.apart is not None:
                outcome = await self.suspects.judge(running, outcome, self.membership.id)
        except BaseException as error:  # noqa: BLE001 whatever went wrong, also with us: the slot is free and the job settled
            outcome = unforeseen(error, running)
        self.slots.finished(running.started_at)
        self.conclude(running, outcome)
        if self.ready or self.starter.early:
            self.starter.start()

    def conclude(self, running: Running, outcome: Outcome) -> None:
        """The attempt is over: settle it, unless there is nothing left to settle."""
        if running.settling:
            return
        watch = self.breakers.watch(running) if self.breakers.watching else None
        settlement = settlement_of((running.claimed, outcome, watch))
        running.settling = True
        if type(outcome) is Completed:
            self.settler.settle(settlement)
        else:
            self._conclude_otherwise(running, settlement)
        self._pause = _FIRST_PAUSE
        if 4 * (len(self.ready) + len(self.starter.early)) <= 3 * self.slots.ahead:
            self._wake.set()

    def _conclude_otherwise(self, running: Running, settlement: Settlement) -> None:
        if isinstance(settlement.outcome, Lost):
            self._settled([settlement], [LOST])
        elif isinstance(settlement.outcome, SettledElsewhere):
            self._settled([settlement], [COMPLETED])
            if settlement.watch is not None:
                self.aside(self.breakers.succeeded(settlement.watch, running))
        else:
            if isinstance(settlement.outcome, Held):
                self.aside(self.claimer.held.hold_unknown(running.claimed.queue))
            self.settler.settle(settlement)

    def _breaker_closed(self) -> None:
        self.aside(self.sweeper.put_back())
        self.look_again()

    def _settled(self, settlements: Sequence[Settlement], states: Sequence[str]) -> None:
        grants = [settlement.grant for settlement in settlements]
        held = self.inflight.remove(grants)
        report.ended(settlements, states, held, self.membership.id, self.tally)
        if self.claimer.by_key:
            self._next_of_streams(held, states)
        for queue in {s.grant.queue for s in settlements if isinstance(s.outcome, Released)}:
            self.claimer.released(queue)
        self.suspects.ended(grants)
        self._wake.set()

    def _next_of_streams(self, held: Sequence[Running | None], states: Sequence[str]) -> None:
        starts, over, back = self.lanes.ended(held, states)
        for running, finished in over:
            self.claimer.settled(running.claimed, finished=finished)
        for behind in back:
            self.conclude(behind, Released("the job before it in its stream went back"))
        if starts:
            self.ready.extendleft(reversed(self.batches.gather(starts)))
            self._start_ready()

    async def _rest(self, claimed: int | None) -> None:
        """Go on at once after work; else pause in growing steps up to the poll interval, or until something happens."""
        if claimed:
            self._pause = _FIRST_PAUSE
        able = self.slots.free > 0 and not self.ready and not self.starter.early
        again = False
        while True:
            nap = Nap(self._pause)
            if claimed is not None:
                nap = await self.sleep.rest(self._pause, able=able, again=again)
            if claimed and (self.slots.free > 0 or self._want(len(self.ready)) > 0):
                return
            if nap.seconds <= 0:
                self.claimer.look_again()
                self.suspects.look_again()
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(nap.seconds, self.claimer.again_in or nap.seconds)):
                    await self._wake.wait()
                    return
            self._pause = min(self._pause * 1.6, max(self.settings.poll, self._pause))
            if not nap.deep:
                return
            again = True
            self.ticked_at = time.monotonic()

    async def _is_idle(self) -> bool:
        """Nothing held, and nothing due when looked at from the start."""
        if len(self.inflight) or self.settler.pending or self.aside:
            return False
        if any([await service.catch_up() for service in self.services]):
            return False
        self.look_again()
        self.claimer.look_again(thorough=True)
        claimed = await self._claim()
        self._start_ready()
        return claimed == 0 and not len(self.inflight)

    def look_again(self) -> None:
        self.claimer.look_again()
        self.suspects.look_again()
        self.breakers.look_again()
        self._pause = _FIRST_PAUSE
        self._wake.set()

    def _look_after(self, queue: str, buckets: list[int] | None) -> None:
        self.claimer.look_after(queue, buckets)
        self._pause = _FIRST_PAUSE
        self._wake.set()
