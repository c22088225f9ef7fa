"""An attempt from its slot to its end in the database: run, conclude, settled."""

import logging
from collections.abc import Callable, Sequence
from contextvars import Context

from .. import telemetry
from ..model.outcome import (
    NOTHING,
    Cancelled,
    Completed,
    Held,
    Lost,
    Outcome,
    Released,
    SettledElsewhere,
    Settlement,
    Suspended,
    settlement_of,
)
from ..model.state import COMPLETED, JOB_STARTED, LOST, word_of
from . import report
from .batch.gather import Group
from .batch.together import Calls
from .breakers import Breakers
from .claim.queues import Queues
from .claim.suspects import Suspects
from .context import WorkerContext
from .decide import decide, unforeseen
from .dispatch import Dispatcher
from .execute import Executor
from .handler import kept
from .inflight import Running
from .settle import Settler
from .sleep import FIRST_PAUSE
from .slots import Slots
from .tally import Tally


class Attempts:
    dispatcher: Dispatcher  # it starts these, and learns when they have ended
    ended_by_loop: Callable[[Outcome], bool]  # it was closed, which cancels every task: no handler failed

    def __init__(
        self,
        context: WorkerContext,
        executor: Executor,
        slots: Slots,
        queues: Queues,
        suspects: Suspects,
        breakers: Breakers,
        tally: Tally,
    ) -> None:
        self.inflight = context.inflight
        self.settler = Settler(
            context.database, context.me, self._settled, breakers.changed, context.options.recorders
        )
        self.settler.endings = context.endings
        self.side = context.side
        self._keeps = kept(context.handlers)
        self._me = context.me
        self._pause = context.pause
        self._executor = executor
        self._slots = slots
        self._queues = queues
        self._suspects = suspects
        self._breakers = breakers
        self._tally = tally
        self._heard = True  # somebody subscribed to starts

    def look(self) -> None:
        """Find out which subscribers want each attempt; called once for many jobs."""
        self._heard = telemetry.audible(logging.DEBUG, JOB_STARTED)
        self._executor.look()

    async def run(self, running: Running) -> None:
        """From the slot to the outcome, in the job's own task. A handler that needs nothing around it is awaited here."""
        executor = self._executor
        try:
            if self._heard:
                report.started(running, self._me())
            call = executor.prepare(running)
            if isinstance(call, Outcome):
                outcome = call
            elif (handler := call[0]).bare and not executor.layers and (arguments := call[1]) is not None:
                try:
                    value = await handler.func(**arguments)
                    empty = value is None and handler.returns_none
                    outcome = NOTHING if empty else Completed(handler.encode(value))
                except BaseException as error:  # noqa: BLE001 every end of a handler is an outcome
                    outcome = decide(error, running, handler)
            else:
                outcome = await executor.perform(running, call)
            if running.apart is not None:
                outcome = await self._suspects.judge(running, outcome, self._me())
        except BaseException as error:  # noqa: BLE001 whatever went wrong, in Holdfast too: free the slot and settle the job
            outcome = unforeseen(error, running)
        self._slots.finished(running.started_at + running.rested)
        self.conclude(running, outcome)
        if running.task is not None:
            running.task = None  # which keeps its context: thousands wait here to be settled
        self.dispatcher.go_on()

    def start_batch(self, group: Group, began: float, context: Context) -> None:
        calls = Calls(self._executor, self._slots, self._me, self)
        self.side(calls.run(group, began), context.copy())  # changes to context variables stay in this task

    def end_unstarted(self, running: Running) -> None:
        """The job was lost or cancelled while it waited here."""
        self._end(running, Lost() if running.stop == LOST else Cancelled("cancelled before it ran"))

    def end_abandoned(self, running: Running) -> None:
        """The job's task ended without an outcome: it was cancelled before it began, and so before the guard."""
        if running.abandoned and running.call is None:  # a call owns its jobs
            if running.task is not None and running.task.cancelled():
                self._slots.finished(running.started_at)
            self._end(running, Released("not started"))

    def hand_back(self, unstarted: Sequence[Running]) -> None:
        for running in unstarted:
            self._end(running, Released("not started"))

    def _end(self, running: Running, outcome: Outcome) -> None:
        self.conclude(running, outcome)
        self.want_more()

    def want_more(self) -> None:
        """Jobs have ended: claim more, if few are left here."""
        self._pause.seconds = FIRST_PAUSE
        if self._slots.lacks(self.dispatcher.waiting + len(self.dispatcher.early.waiting)):
            self._pause.end()

    def conclude(self, running: Running, outcome: Outcome) -> None:
        """The attempt is over: settle it, unless there is nothing left to settle."""
        if running.settling:
            return
        claimed = running.claimed
        watch = self._breakers.watch(running) if self._breakers.watching else None
        keep = self._keeps.get(claimed.task) if self._keeps else None
        settlement = settlement_of((claimed, outcome, watch, keep))
        running.settling = True
        if type(outcome) is Completed:
            self.settler.settle(settlement)
        else:
            self._conclude_otherwise(running, settlement)

    def _conclude_otherwise(self, running: Running, settlement: Settlement) -> None:
        if self.ended_by_loop(settlement.outcome):
            settlement = settlement._replace(outcome=Released("the event loop was closed"))
        if isinstance(settlement.outcome, Lost | Suspended):
            self._settled([settlement], [word_of(settlement.outcome).word])
        elif isinstance(settlement.outcome, SettledElsewhere):
            self._settled([settlement], [COMPLETED])
            if settlement.watch is not None:
                self.side(self._breakers.succeeded(settlement.watch, running))
        else:
            if isinstance(settlement.outcome, Held):
                self.side(self._queues.held.hold_unknown(running.claimed.queue))
            self.settler.settle(settlement)

    def _settled(self, settlements: Sequence[Settlement], states: Sequence[str]) -> None:
        """The jobs have ended in the database: count and report them, and continue with what waited for them."""
        grants = [settlement.grant for settlement in settlements]
        held = self.inflight.remove(grants)
        report.ended(settlements, states, held, self._me(), self._tally)
        if self._queues.by_key:
            self._go_on(held, states)
        if states.count(COMPLETED) < len(states):
            for queue in {s.grant.queue for s in settlements if isinstance(s.outcome, Released)}:
                self._queues.released(queue)
        self._suspects.ended(grants)
        dispatcher, ready = self.dispatcher, len(self.dispatcher.ready)
        plain = dispatcher.waiting == ready and not dispatcher.early.waiting and not self._queues.by_key
        if not plain or not self._slots.content(ready):  # the jobs that take these slots start in a moment
            self._pause.end()

    def _go_on(self, held: Sequence[Running | None], states: Sequence[str]) -> None:
        """Continue with the next jobs of the same keys."""
        starts, over, back = self.dispatcher.ended(held, states)
        for running, finished in over:
            self._queues.settled(running.claimed, finished=finished)
        for behind in back:
            self._end(behind, Released("the job before it in its stream went back"))
        self.dispatcher.start_next(starts)
