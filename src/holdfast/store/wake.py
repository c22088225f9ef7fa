"""Wake-ups: which workers sleep, which are woken, and when there is something to do without a wake-up."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..sql import query_asking
from .statement import Row, Statement, named, nothing


def channel(queue: str) -> str:
    """Where holdfast.wake() tells that a queue has something to do."""
    return f"holdfast_{queue}"


def wake(queues: Sequence[str], delays: Sequence[float] | None = None) -> Statement[None]:
    """Tell those who sleep that jobs of these queues are due, now or each after its delay."""
    return named("wake", (list(queues), None if delays is None else list(delays)), nothing)


def fall_asleep(worker: str, queues: Sequence[str], poll: float) -> Statement[bool]:
    """False: the worker is not alive any more."""
    return named("fall_asleep", (worker, list(queues), poll), lambda rows: bool(rows[0][0]))


def get_up(worker: str, queues: Sequence[str] | None = None) -> Statement[None]:
    """`queues` None: all of them."""
    return named("get_up", (worker, None if queues is None else list(queues)), nothing)


class Prospect(NamedTuple):
    due_in: float | None  # seconds; 0 or less: now; None: not before the next look
    asleep: int  # workers in these queues, this one too


def next_due(
    queues: Sequence[str], known: Sequence[tuple[str, int]], within: float, signatures: Sequence[str] = ()
) -> Statement[Prospect]:
    """What a worker of these queues and tasks can expect within that many seconds."""

    def decode(rows: Sequence[Row]) -> Prospect:
        return Prospect(*rows[0])

    tasks, versions = [t for t, _ in known], [v for _, v in known]
    params = (list(queues), tasks, versions, within, list(signatures))
    return named("next_due", params, decode)


class Pulse(NamedTuple):
    """What a sleeping worker learned when it said that it lives."""

    due_in: float | None  # as in Prospect
    asleep: int
    sweep: bool | None  # it has the turn, and there is something to do; None: sweep_begin must be asked
    tidy: bool
    seats: list[str]  # of live workers in the rings that were asked for, as Seat.text has them
    answers: list[Any]  # to the questions, in their order


class Question(NamedTuple):
    """One value that a service wants to know while its worker sleeps."""

    part: str  # the name of its SQL, an expression whose first parameter is $1
    params: tuple[object, ...]


_OWN = len(Pulse._fields) - 1  # columns of the pulse itself


@dataclass(frozen=True, slots=True)
class Rounds:
    """How often what is to be done, in seconds."""

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
    """Say that a sleeping worker lives, and learn what it can expect; `within` None: without a look at its queues. None: it
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
