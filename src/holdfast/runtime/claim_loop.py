"""The claim loop: claim jobs for the free slots, start them, pause until there is more to do."""

import math
import random
import time
from collections.abc import Sequence

from .. import telemetry
from ..db.faults import BadRow, Contended, LockTimeout
from ..errors import DatabaseUnavailable
from ..model.job import ClaimedJob
from .attempts import Attempts
from .breakers import Breakers
from .claim.claimer import Ask
from .claim.notified import NotifiedClaimer
from .claim.queues import Queues
from .claim.suspects import SuspectClaimer, Suspects
from .claim.trials import TrialClaimer
from .context import WorkerContext
from .inflight import Running
from .local_enqueues import LocalEnqueues
from .service import Service, loudness
from .sleep import Nap, Sleep
from .slots import Slots

_LONGEST_PAUSE = 1.0  # while the database is away; the first session that reaches it ends all pauses
_UNSETTLED = 4000  # outcomes that wait to be written: no more claims until they are fewer


class ClaimLoop:
    def __init__(
        self,
        context: WorkerContext,
        queues: Queues,
        attempts: Attempts,
        slots: Slots,
        suspects: Suspects,
        breakers: Breakers,
        sleep: Sleep,
    ) -> None:
        self._me = context.me
        self._settings = context.settings
        self._stopping = context.stopping
        self._pause = context.pause
        self._queues = queues
        self._notified = NotifiedClaimer(queues, sleep.notified, self._look_everywhere)
        self._suspect_claimer = SuspectClaimer(queues)
        self._trials = TrialClaimer(queues, breakers, suspects)
        self._attempts = attempts
        self._dispatcher = attempts.dispatcher
        self._slots = slots
        self._suspects = suspects
        self._breakers = breakers
        self._sleep = sleep
        self._local = LocalEnqueues(context.database.enqueued, lambda: queues.names, self._pause, slots)
        self.ticked_at = time.monotonic()  # when it last came round

    async def run(self) -> None:
        """Run until stopped."""
        with self._local.heard():
            while not self._stopping.is_set():
                await self._rest(await self._turn())

    async def run_until_idle(self, services: Sequence[Service]) -> None:
        """Run until nothing is due, or until stopped."""
        while not self._stopping.is_set():
            claimed = await self._turn(hurry=True)
            if claimed == 0 and await self._is_idle(services):
                break
            await self._rest(claimed)

    async def _turn(self, *, hurry: bool = False) -> int | None:
        """Claim and start. `hurry`: if nothing more is due, incomplete batches start too. Returns the result of _claim()."""
        self.ticked_at = self._pause.begin()
        claimed = await self._claim()
        batches = self._dispatcher.batches
        if hurry and claimed == 0 and self._slots.free > 0 and not batches.due:
            batches.hurry()
        self._dispatcher.start()
        self._attempts.hand_back(self._dispatcher.stale(self._is_full))
        return claimed

    async def _claim(self) -> int | None:
        """Claim for the free slots. None: the claim failed. An outage is waited out; it never ends the loop."""
        try:
            claimed = await self._claim_new() or await self._claim_all_kinds()
        except (DatabaseUnavailable, BadRow, Contended, LockTimeout) as error:
            failed = min(max(self._pause.seconds * 2, 0.5), _LONGEST_PAUSE)
            self._pause.seconds = pause = failed * random.uniform(0.8, 1.0)  # noqa: S311
            telemetry.emit("claim.failed", level=loudness(error), error=str(error), next_try_in=pause)
            return None
        if claimed:
            self._suspects.others_came()
        return claimed

    async def _claim_new(self) -> int:
        """Claim the jobs that a notification announced."""
        want, began = self._want(), time.monotonic()
        jobs = await self._notified.claim(Ask(self._me(), want, waiting=self._idle_bytes()))
        if jobs:
            self._dispatcher.admit(self._hold(jobs, began))
            self._slots.enough = self._slots.enough and len(jobs) < want
        return len(jobs)

    async def _claim_all_kinds(self) -> int:
        """Suspects get their part, then the trial of a breaker, then other jobs, then suspects get what is left."""
        await self._claim_suspects(spare=False)
        await self._claim_trial()
        ask, began, jobs = self._ask(), time.monotonic(), list[ClaimedJob]()
        if ask.want and not (jobs := await self._queues.claim(ask)):
            await self._claim_suspects(spare=True)
        self._dispatcher.admit(self._hold(jobs, began))
        self._slots.enough = len(jobs) < ask.want and not self._queues.cut
        return len(jobs)

    async def _claim_suspects(self, *, spare: bool) -> None:
        """Claim as many suspects as have room now. `spare`: other jobs were asked for, and none waits for the free slots."""
        while room := self._suspects.due(self._free_for_suspects(), spare=spare):
            began = time.monotonic()
            jobs = await self._suspect_claimer.claim(Ask(self._me(), room))
            if not jobs:
                return
            self._admit_suspects(self._hold(jobs, began))

    def _free_for_suspects(self) -> int:
        """Quick jobs that wait here for a slot would keep suspects out for as long as there is a backlog, so one suspect at
        a time joins them: its slot comes in a moment."""
        ready = self._dispatcher.ready
        soon = 1 if ready and not self._slots.blocked else 0
        return max(soon, self._slots.free - len(ready))

    async def _claim_trial(self) -> None:
        if not self._breakers.due(self._slots.free - len(self._dispatcher.ready)):
            return
        began = time.monotonic()
        jobs = await self._trials.claim(Ask(self._me(), 1))
        if any(job.suspect for job in jobs):
            self._admit_suspects(self._hold(jobs, began))
        elif jobs:
            self._dispatcher.admit(self._hold(jobs, began))

    def _admit_suspects(self, held: list[Running]) -> None:
        self._suspects.took([running for running in held if running.claimed.suspect])
        self._dispatcher.admit(held, alone=True)

    def _hold(self, jobs: list[ClaimedJob], began: float) -> list[Running]:
        """This worker owns these jobs from here on, and renews them."""
        self._attempts.look()
        return self._queues.pace.mark(self._attempts.inflight.add(jobs, began))

    def _ask(self) -> Ask:
        slots, dispatcher = self._slots, self._dispatcher
        free = slots.free - len(dispatcher.ready) - dispatcher.batches.due - len(dispatcher.early)
        return Ask(self._me(), self._want(), free, slots.run, self._idle_bytes(), slots.soon)

    def _want(self) -> int:
        dispatcher = self._dispatcher
        if self._attempts.settler.pending >= _UNSETTLED:
            return 0
        if self._is_full():  # each claim brings one job of a queue
            return max(0, self._slots.free - len(dispatcher.ready) - dispatcher.batches.due)
        return self._slots.want(dispatcher.waiting, dispatcher.batches.wish)

    def _idle_bytes(self) -> int:
        return self._attempts.inflight.idle_bytes(self._settings.claim_bytes // 2)

    def _is_full(self) -> bool:
        """The waiting jobs have reached the limit of bytes."""
        return self._idle_bytes() >= self._settings.claim_bytes

    async def _rest(self, claimed: int | None) -> None:
        """Continue at once after work; otherwise pause, in growing steps up to the poll interval or until woken."""
        pause, dispatcher = self._pause, self._dispatcher
        if claimed:
            pause.seconds = self._slots.pause
        able = self._slots.free > 0 and not dispatcher.ready and not dispatcher.early
        again, come_at = False, time.monotonic() + (self._queues.again_in or math.inf)
        while True:
            nap = Nap(pause.seconds)
            if claimed is not None:
                nap = await self._sleep.rest(pause.seconds, able=able, again=again)
            if claimed and (self._slots.free > 0 or self._want() > 0):
                if self._slots.enough:  # what it started goes first
                    await pause.wait(pause.seconds)
                return
            if nap.seconds <= 0:
                self._look_everywhere()
                return
            if await pause.wait(max(min(nap.seconds, come_at - time.monotonic()), 0.001)):
                return
            pause.seconds = min(pause.seconds * 1.6, max(self._settings.poll, pause.seconds))
            if not nap.deep or time.monotonic() >= come_at:
                return
            again = True
            self.ticked_at = time.monotonic()

    async def _is_idle(self, services: Sequence[Service]) -> bool:
        """Nothing held, and nothing due in a full scan."""
        attempts = self._attempts
        if len(attempts.inflight) or attempts.settler.pending or attempts.side:
            return False
        if any([await service.catch_up() for service in services]):
            return False
        self.look_again()
        self._queues.look_again(thorough=True)
        claimed = await self._claim()
        self._dispatcher.start()
        return claimed == 0 and not len(attempts.inflight)

    def look_again(self) -> None:
        """There may be work that the forward scan misses: make full scans, now."""
        self._look_everywhere()
        self._pause.now()

    def _look_everywhere(self) -> None:
        self._queues.look_again()
        self._suspects.look_again()
        self._breakers.look_again()

    def look_after(self, queue: str, buckets: list[int] | None) -> None:
        """The ring assigned other buckets of a queue to this worker; None: all of them."""
        self._queues.look_after(queue, buckets)
        self._pause.now()
