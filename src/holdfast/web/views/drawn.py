"""The common parts of the engine's pages: their templates, words and colours of states."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.model import state
from holdfast.operate.procedure import Step
from holdfast.pages import PageRequest, State, Tone, View
from holdfast.store.show import JobLine

T = TypeVar("T")
_WORDS: dict[str, tuple[str, Tone]] = {
    state.PENDING: ("due", "due"),
    state.SCHEDULED: ("scheduled", "sched"),
    state.PROCESSING: ("running", "run"),
    state.HELD: ("held", "held"),
    state.BLOCKED: ("blocked", "block"),
    state.QUARANTINED: ("quarantined", "dead"),
    state.COMPLETED: ("completed", "done"),
    state.CANCELLED: ("cancelled", "due"),
    state.DEAD_LETTER: ("dead letter", "dead"),
    state.PARKED: ("parked", "block"),
    state.SUSPENDED: ("waits", "sched"),
    "backing off": ("backing off", "retry"),
}


@dataclass(frozen=True, slots=True)
class Drawn(View):
    """A view with a template of its own."""

    template: str = "view.html"
    context: Mapping[str, Any] = field(default_factory=dict)


Named = tuple[str, str, str]  # a filter: name, label, example


def filters_for(
    asked: PageRequest, known: Sequence[Named], seldom: Collection[str], searches: Collection[str]
) -> dict[str, list[Named]]:
    """Those that this role may use: the usual ones first. `searches` look in what a viewer does not read."""
    mine = [one for one in known if asked.role != "viewer" or one[0] not in searches]
    return {
        "usual": [one for one in mine if one[0] not in seldom],
        "seldom": [one for one in mine if one[0] in seldom],
    }


def later(make: Callable[[], Awaitable[T]]) -> Step[T]:
    """A call that the site has to wait for, inside a procedure."""

    def never(_: object) -> T:
        raise NotImplementedError("the dashboard runs on an event loop")

    return Step(never, lambda _: make())


def state_word(word: str) -> State:
    text, tone = _WORDS.get(word, (word, ""))
    return State(text, tone)


def job_state(job: JobLine) -> State:
    """`backing off` is scheduled, after an attempt that failed."""
    if job.state == state.SCHEDULED:
        if job.available_at.year >= state.NEVER:
            return state_word(state.SUSPENDED)
        if job.attempts:
            return state_word("backing off")
    return state_word(job.state)
