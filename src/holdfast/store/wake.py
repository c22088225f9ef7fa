"""Wake-ups: which workers sleep, which are woken, and when there is something to do without a wake-up."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..sql import query_asking
from .statement import Row, Statement, named, nothing


def channel(queue: str) -> str:
    """The topic of a queue for holdfast.wake()."""
    return f"holdfast_{queue}"


def wake(queues: Sequence[str], delays: Sequence[float] | None = None) -> Statement[None]:
    """Wake sleeping workers: jobs of these queues are due, now or each after its delay."""
    return named("wake", (list(queues), None if delays is None else list(delays)), nothing)


def fall_asleep(worker: str, queues: Sequence[str], poll: float) -> Statement[bool]:
    """False: the worker is not alive any more."""
    return named("fall_asleep", (worker, list(queues), poll), lambda rows: bool(rows[0][0]))


def get_up(worker: str, queues: Sequence[str] | None = None) -> Statement[None]:
    """`queues` None: all of them."""
    return named("get_up", (worker, None if queues is None else list(queues)), nothing)


class Prospect(NamedTuple):
    due_in: float | None  # seconds; 0 or less: now; None: not before the next read
    asleep: int  # workers in these queues, this one included


def next_due(
    queues: Sequence[str], known: Sequence[tuple[str, int]], within: float, signatures: Sequence[str] = ()
) -> Statement[Prospect]:
    """What a worker of these queues and tasks can expect within this many seconds."""

    def decode(rows: Sequence[Row]) -> Prospect:
        return Prospect(*rows[0])

    tasks, versions = [t for t, _ in known], [v for _, v in known]
    params = (list(queues), tasks, versions, within, list(signatures))
    return named("next_due", params, decode)


class Pulse(NamedTuple):
    """What a sleeping worker learns with its heartbeat."""

    due_in: float | None  # as in Prospect
    asleep: int
    sweep: bool | None  # it has the turn, and there is something to do; None: sweep_begin must be asked
    tidy: bool
    seats: list[str]  # of live workers in the rings that were asked for, as Seat.text has them
    answers: list[Any]  # the replies to the questions, in their order


class Question(NamedTuple):
    """A value that a service wants to know while its worker sleeps."""

    part: str  # the name of its SQL, an expression whose first parameter is $1
    params: tuple[object, ...]


_OWN = len(Pulse._fields) - 1  # columns of the pulse itself


@dataclass(frozen=True, slots=True)
class Rounds:
    """The interval in seconds."""

    sweep: float
    gap: float
    grace: float
    dead_after: float
    tidy: float
    retry: float
    misfits: float = 600.0


def pulse(
    worker: str,
    queues: Sequence[str],
    known: Sequence[tuple[str, int]],
    within: float | None,
    rounds: Rounds,
    signatures: Sequence[str] = (),
    rings: Sequence[str] = (),
    questions: Sequence[Question] = (),
) -> Statement[Pulse | None]:
    """Report that a sleeping worker is alive, and what it can expect; `within` None: without its queues. None: it
    is not alive."""

    def decode(rows: Sequence[Row]) -> Pulse | None:
        return Pulse._make((*rows[0][:_OWN], list(rows[0][_OWN:]))) if rows else None

    looks = [] if within is None else list(queues)
    tasks, versions = [t for t, _ in known], [v for _, v in known]
    every = (rounds.sweep, rounds.gap, rounds.grace, rounds.dead_after, rounds.tidy, rounds.retry)
    look = (looks, tasks, versions, within or 0.0, list(signatures))
    params = (*look, worker, list(queues), *every, rounds.misfits, list(rings))
    text = query_asking("pulse", len(params), tuple((q.part, len(q.params)) for q in questions))
    return Statement("pulse", text, (*params, *(value for q in questions for value in q.params)), decode)


def say_it(name: str) -> Statement[None]:
    return named("say_it", (name,), nothing)
