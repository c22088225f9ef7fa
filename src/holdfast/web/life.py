"""The life of a job as one line: when it was made, each claim that failed or runs, how it ended, and what comes next.

The drawn length of each stretch is the logarithm of its time, so that a backoff of an hour leaves room for the second
before it; the time itself is written below. Only the end of a failed attempt is stored, so an attempt is a mark.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from holdfast.model import state
from holdfast.operate.jobs import JobReport
from holdfast.store.show import Attempt
from holdfast.web.shown import clock, span

WIDTH = 780.0
_EDGE, _BOX, _Y = 20.0, 44.0, 46.0
_LEAST, _MOST_WIDE = 46.0, 190.0
_FIRST, _LAST = 2, 4  # attempts that are drawn of many
_LOST = ("owner lost", "process died")
_STUCK = {
    state.HELD: state.HELD,
    state.BLOCKED: "block",
    state.QUARANTINED: "block",
}  # with the tone of the line


class Node(NamedTuple):
    """A moment, with what to write above and inside it."""

    at: datetime
    label: str
    tone: str  # empty: a point on the line
    inside: str = ""  # the generation, which tells a stale owner apart
    after: str = ""  # what the time behind it is: "backs off"
    title: str = ""


class Placed(NamedTuple):
    node: Node
    x: float
    width: float


class Stretch(NamedTuple):
    x: float
    width: float
    label: str
    took: str
    tone: str  # of the line
    dotted: bool


@dataclass(frozen=True, slots=True)
class Life:
    nodes: Sequence[Placed]
    stretches: Sequence[Stretch]
    width: float
    sentence: str
    began: str
    last: str
    end: float  # where the last moment is


def life_of(report: JobReport, now: datetime) -> Life:
    nodes = [Node(report.job.created_at, "enqueued", "", after=_before_first(report)), *_attempts(report)]
    ends = _ending(report, now)
    return _placed([*nodes, *ends], report, now)


def _before_first(report: JobReport) -> str:
    return "" if report.errors or report.job.claimed_at is not None else _waits(report)


def _waits(report: JobReport) -> str:
    """What a waiting job waits for."""
    job = report.job
    if job.state == state.SCHEDULED:
        return "backs off" if job.attempts else "not due yet"
    if job.state == state.PENDING:
        return "due"
    return job.state if job.state in _STUCK else ""


def _attempts(report: JobReport) -> list[Node]:
    failed = sorted(report.errors, key=lambda one: one.at)
    left = len(failed) - _FIRST - _LAST
    if left > 1:
        between = failed[_FIRST]
        more = Node(between.at, f"{left} more", "due", "…", "", f"{left} more attempts failed")
        return [*map(_failed, failed[:_FIRST]), more, *map(_failed, failed[-_LAST:])]
    return [_failed(one) for one in failed]


def _failed(one: Attempt) -> Node:
    lost = one.what in _LOST
    label = state.LOST if lost else f"attempt {one.attempt}"
    title = f"{one.what} at {clock(one.at)}, claim {one.generation}" + (
        f" on {one.worker}" if one.worker else ""
    )
    return Node(
        one.at,
        label,
        "dead" if lost else "retry",
        str(one.generation),
        "taken back" if lost else "backs off",
        title,
    )


def _ending(report: JobReport, now: datetime) -> list[Node]:
    job = report.job
    if job.state == state.PROCESSING and job.claimed_at is not None:
        on = f", claim {job.generation} on {job.claimed_by}"
        return [Node(job.claimed_at, "runs", "run", str(job.generation), "runs", f"since {clock(job.claimed_at)}{on}"),
                Node(now, "now", "now")]  # fmt: skip
    if report.place == "queue":
        ahead = job.available_at > now and job.available_at.year < state.NEVER
        nexts = (
            [Node(job.available_at, "due", "", title=f"due at {clock(job.available_at, now)}")]
            if ahead
            else []
        )
        return [Node(now, "now", "now", after="until due" if nexts else ""), *nexts]
    ended = job.finished_at
    if ended is None or (job.state == state.DEAD_LETTER and report.errors):
        return []  # the last attempt of a dead letter is its end
    tone = {state.COMPLETED: "done", state.DEAD_LETTER: "dead"}.get(job.state, "due")
    began = job.claimed_at
    ran = (
        [Node(began, "", "", after="ran", title=f"claimed at {clock(began)}")]
        if began and began < ended
        else []
    )
    return [
        *ran,
        Node(
            ended,
            job.state.replace("_", " "),
            tone,
            str(job.generation or ""),
            "",
            f"{job.state} at {clock(ended)}",
        ),
    ]


def _placed(nodes: Sequence[Node], report: JobReport, now: datetime) -> Life:
    gaps = [max((after.at - before.at).total_seconds(), 0.0) for before, after in itertools.pairwise(nodes)]
    widths = [_BOX if node.tone not in ("", "now") else 0.0 for node in nodes]
    long = [min(_LEAST + 26 * math.log10(1 + gap), _MOST_WIDE) for gap in gaps]
    room = WIDTH - 2 * _EDGE - sum(widths)
    scale = room / sum(long) if long else 1.0
    long = [one * min(scale, 2.4) for one in long]
    placed, stretches, x = [], [], _EDGE
    for n, node in enumerate(nodes):
        placed.append(Placed(node, x, widths[n]))
        x += widths[n]
        if n < len(gaps):
            label = node.after
            if nodes[n + 1].tone == "now":
                label = _waits(report) or label
            tone = _STUCK.get(label, node.tone)
            dotted = node.tone == "now" or label == "taken back"
            stretches.append(
                Stretch(
                    x,
                    long[n],
                    label,
                    span(gaps[n]),
                    tone if tone not in ("", "now", "due") else "line",
                    dotted,
                )
            )
            x += long[n]
    whole = span((nodes[-1].at - nodes[0].at).total_seconds())
    said = "; ".join(f"{one.label} at {clock(one.at, now)}" for one in nodes)
    return Life(
        placed,
        stretches,
        WIDTH,
        f"The life of the job, {whole} long: {said}.",
        clock(nodes[0].at, now),
        clock(nodes[-1].at, now),
        max(placed[-1].x + placed[-1].width, 220.0),
    )
