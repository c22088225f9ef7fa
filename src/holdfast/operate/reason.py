"""Why a job is not running, in one sentence; and what a shape knows about its own jobs."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from ..store.statement import Flow
from .advice import Advice

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reason:
    code: str
    sentence: str
    advice: list[Advice]


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of a job to the shape that made it."""

    reasons: Sequence[Reason]
    instead: frozenset[str]  # codes of the engine's reasons that these replace


Means = Callable[[UUID], Flow[Meaning | None]]  # None: the job is not the shape's own


def with_meanings(seen: Flow[T], job_id: UUID, means: Sequence[Means]) -> Flow[tuple[T, list[Meaning]]]:
    """The engine's facts and the shapes' reasons, in one transaction."""
    answer = yield from seen
    found: list[Meaning] = []
    for ask in means:
        meaning = yield from ask(job_id)
        if meaning is not None:
            found.append(meaning)
    return answer, found


def meant(reasons: Iterable[Reason], meanings: Iterable[Meaning]) -> list[Reason]:
    """All of them, the shapes' first. A shape without a reason for a job removes none."""
    found = list(reasons)
    for meaning in meanings:
        if meaning.reasons:
            found = [*meaning.reasons, *(one for one in found if one.code not in meaning.instead)]
    return found
