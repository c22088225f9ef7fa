"""The pulse: while a worker sleeps, one statement per heartbeat asks for all of its services.

A sleeping worker holds no job, so one statement can be its heartbeat, read its queues, ask whether
there is something to sweep, and ask for the services of the shapes. A service whose question is asked here asks
nothing by itself. A pulse is valid for a little longer than the time to the next one: if it stops, because the
worker woke, the loop hangs or the query is slow, every service asks for itself again, and the renewing thread beats.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from ..settings import Settings
from ..store import wake as store
from ..store.statement import Statement
from ..store.wake import Question

TIDY_EVERY = 60.0  # seconds, while there is work
_TIDY_ASLEEP = 600.0
_LATE = 0.5  # seconds that a pulse may be late


def gap_and_grace(s: Settings) -> tuple[float, float]:
    """Live owners beat every `heartbeat`; after a gap in sweeping in which one could have fallen silent for too long, they
    get two beats to renew before anyone takes their work. The last beat may be older than the last sweep, so a gap
    counts well before dead_after."""
    return max(s.dead_after - 2 * s.heartbeat, 2 * s.sweep), 2 * s.heartbeat


class Pulse:
    def __init__(
        self,
        settings: Settings,
        rings: Callable[[], Sequence[str]] = lambda: (),
        asked: Sequence[tuple[Question, Callable[[Any], None]]] = (),
    ) -> None:
        """`asked`: the questions of services, and the functions that get the replies."""
        self.every = settings.heartbeat
        gap, grace = gap_and_grace(settings)
        self._rounds = store.Rounds(
            settings.sweep * 0.9,
            gap,
            grace,
            settings.dead_after,
            _TIDY_ASLEEP,
            TIDY_EVERY,
            settings.misfit_wait,
        )
        # A service that sweeps more often than the heart beats asks by itself.
        self.sweeps = self.every <= 1.5 * settings.sweep
        self._asked = list(asked)
        self._rings = rings
        self._worker = ""
        self._until = 0.0
        self._since = 0.0
        self.sweep: bool | None = False
        self.tidy = False
        self.seats: list[str] = []
        self.on_felt: Callable[[Pulse], None] = lambda pulse: None
        self.on_end: Callable[[], None] = lambda: None

    def statement(
        self,
        worker: str,
        queues: Sequence[str],
        known: Sequence[tuple[str, int]],
        within: float | None,
        signatures: Sequence[str] = (),
    ) -> Statement[store.Pulse | None]:
        questions = [question for question, _ in self._asked]
        return store.pulse(worker, queues, known, within, self._rounds, signatures, self._rings(), questions)

    def felt(self, worker: str, began: float, found: store.Pulse) -> None:
        """The reply to a pulse that was sent then."""
        if not self.lasts:
            self._since = began
        self._worker = worker
        self._until = began + self.every + _LATE
        self.sweep = found.sweep if self.sweeps else False
        self.tidy = found.tidy
        self.seats = found.seats
        self.on_felt(self)
        for (_, on_answer), answer in zip(self._asked, found.answers, strict=True):
            on_answer(answer)

    def end(self) -> None:
        """The worker is awake."""
        if self._until:
            self._until = 0.0
            self.on_end()

    @property
    def left(self) -> float:
        """Seconds for which nobody else needs to ask; 0 or less: there is no pulse."""
        return self._until - time.monotonic()

    @property
    def lasts(self) -> bool:
        return self.left > 0

    def beats_for(self, worker: str, since: float) -> float:
        """Seconds for which this worker needs no other heartbeat, if the pulse began before it."""
        return self.left if self._worker == worker and since > self._since else 0.0
