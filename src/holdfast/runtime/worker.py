"""The worker: claim, execute, settle. It makes the parts, and lets them run.

ClaimLoop    claims what the free slots need       (claim_loop.py, claim/)
Dispatcher   starts jobs in the free slots         (dispatch.py, early.py, lanes.py, batch/)
Attempts     each job from its slot to its end     (attempts.py, execute.py, settle.py)
Renewal      renews leases, in its own thread      (renew.py, lease_events.py)
Lifecycle    starts and stops all of it            (lifecycle.py)
"""

from collections.abc import Sequence

from ..db.database import Database
from ..model.worker import WorkerIdentity
from .attempts import Attempts
from .batch.gather import Batches
from .breakers import Breakers
from .claim.queues import Queues
from .claim.suspects import Suspects
from .claim_loop import ClaimLoop
from .context import WorkerContext
from .dispatch import Dispatcher
from .execute import Executor
from .handler import Handlers
from .inflight import Processes
from .lanes import Lanes
from .lease_events import LeaseEvents
from .lifecycle import Lifecycle, Services
from .membership import Membership
from .middleware import Middleware
from .notify import Notify
from .options import WorkerOptions
from .renewal_thread import RenewalThread
from .ring import Ring
from .service import Service
from .sleep import Sleep
from .slots import Slots
from .sweep import Sweeper
from .tally import Tally
from .vitals import Measured


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
        """`services`: those of the shapes. They start last and stop first."""
        self._membership = Membership(database, handlers, options)
        session = self._membership.session
        context = WorkerContext(database, handlers, options, lambda: self._membership.id, session)
        self._executor = Executor(
            database, handlers, context.me, middleware, processes=processes, recorders=options.recorders
        )
        self.slots = Slots(options.concurrency, database.settings.prefetch, self._executor.threads)
        self._executor.resting.slots, self._executor.resting.on_free = self.slots, context.pause.end
        self._queues = Queues(database, handlers, options.leases, options.rules, context.inflight)
        self._suspects = Suspects(session, database.settings, options.children, options.concurrency)
        self._breakers = Breakers(handlers, session, database.settings.sweep, self._breaker_closed)
        self._tally = Tally(session)
        self._context, self._services = context, services
        self.measured = Measured(database)
        self._attempts = attempts = Attempts(
            context, self._executor, self.slots, self._queues, self._suspects, self._breakers, self._tally
        )
        attempts.dispatcher = Dispatcher(
            self.slots,
            attempts,
            context.stopping.is_set,
            batches=Batches(handlers, context.pause.end_in, database.settings.claim_bytes),
            lanes=Lanes(options.rules),
            pace=self._queues.pace,
            dead_after=database.settings.dead_after,
        )
        sleep = Sleep(session, context.me, list(options.leases), handlers, database.settings.poll)
        self._claim_loop = ClaimLoop(
            context, self._queues, attempts, self.slots, self._suspects, self._breakers, sleep
        )
        look_again, self.slots.told = self._claim_loop.look_again, sleep.told
        self._sweeper = Sweeper(database, look_again, self._tally.buried, context.me, options.prunes)
        self._lifecycle = self._make_lifecycle(sleep)

    def _make_lifecycle(self, sleep: Sleep) -> Lifecycle:
        context, look_again = self._context, self._claim_loop.look_again
        database, until_idle = context.database, context.options.until_idle
        events = LeaseEvents(context, self._membership, self._attempts, look_again, self.measured)
        # One that runs until nothing is due claims from every key, also from those of a dead neighbour.
        rings = list[str] if until_idle else lambda: self._queues.ringed
        services = Services(
            membership=self._membership,
            renewal=RenewalThread(events.renewal, context.inflight, self.measured),
            sweeper=self._sweeper,
            tally=self._tally,
            ring=Ring(database, rings, context.me, self._claim_loop.look_after),
            notify=Notify(
                database, context.session, list(context.options.leases), sleep, look_again, context.pause.now
            ),
            of_shapes=self._services,
            resting=self._executor.resting,
            sleep=sleep,
        )
        return Lifecycle(context, services, self._attempts, self._queues, look_again)

    async def run(self) -> None:
        try:
            await self._lifecycle.run(self._work)
        finally:
            self._executor.close()

    async def _work(self) -> None:
        self._context.side(self._breakers.close_unwatched())
        loop, until_idle = self._claim_loop, self._context.options.until_idle
        await (loop.run_until_idle(self._services) if until_idle else loop.run())

    def stop(self) -> None:
        """Stop claiming and drain; called again, drain at once."""
        self._context.stop()

    def _breaker_closed(self) -> None:
        self._context.side(self._sweeper.put_back())
        self._claim_loop.look_again()

    @property
    def identity(self) -> WorkerIdentity:
        return self._membership.identity

    @property
    def release(self) -> str:
        return self._context.options.release  # the application's

    @property
    def queues(self) -> list[str]:
        return self._queues.names

    @property
    def draining(self) -> bool:
        return self._context.stopping.is_set()

    @property
    def ticked_at(self) -> float:
        """When the claim loop made its last turn."""
        return self._claim_loop.ticked_at

    def running_tasks(self) -> list[str]:
        """The tasks whose handlers are running."""
        return sorted({r.claimed.task for r in self._context.inflight.select(lambda r: r.started_at > 0)})
