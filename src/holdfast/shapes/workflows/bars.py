"""A run in words, and its timeline as bars: a line per record, from the run's start on the left to its end, or now."""

import json
import shutil
from collections.abc import Iterator, Sequence
from datetime import datetime

from ...operate.wording import cut, moment, several, span
from .runs import RunView
from .timeline import Entry, Sent

MOST_LINES = 200  # lines
_LABEL = 36  # columns, at most
_WAITS = ("sleep", "signal", "call", "child")
_WORK, _WAIT, _BAD, _OPEN, _NOTED = "█", "░", "▓", "▒", "·"
IF_IT_FAILS = "if it fails"
FAR = 9000  # a year that means never


def waits_for(run: RunView) -> str:
    """`signal decided until 2026-...`: what a suspended run waits for; empty for others."""
    until = run.wake_at if run.wake_at is not None and run.wake_at.year < FAR else None
    names = [_wait(name) for name in run.waits or []]
    if names:
        return " or ".join(names) + (f", until {moment(until)}" if until else "")
    if until is not None:
        return f"a time: {moment(until)}"
    return ""


def _wait(name: str) -> str:
    kind, colon, key = name.partition(":")
    if not colon:
        return f"signal {name}"
    return f"the end of {'child' if kind == 'child' else 'call'} {key}"


def facts(run: RunView, signals: Sequence[Sent]) -> Iterator[tuple[str, str]]:
    """The facts about a run, with a name for each."""
    yield "run", f"{run.id} of {run.workflow} version {run.version}, queue {run.queue}"
    if run.id != str(run.run_id):
        yield "id", str(run.run_id)
    yield "state", f"{stands(run)}{_reasons(run)}"
    yield "started", _started(run)
    if run.ended_at is not None:
        yield (
            "ended",
            f"{moment(run.ended_at)}, after {span((run.ended_at - run.created_at).total_seconds())}",
        )
    if run.error is not None:
        yield "error", cut(run.error, 400)
    if run.state == "completed":
        yield "result", cut(json.dumps(run.result), 400)
    if run.shown is not None:
        yield "says", cut(json.dumps(run.shown), 400)
    yield from _around(run)
    unread = [one.name for one in signals if one.taken_by is None]
    if unread:
        yield "unread", f"{several(len(unread), 'signal')}: {', '.join(sorted(set(unread)))}"


def _around(run: RunView) -> Iterator[tuple[str, str]]:
    if run.deadline is not None and run.ended_at is None:
        yield "deadline", moment(run.deadline)
    if run.parent_id is not None:
        yield "parent", f"{run.parent_id}, as {run.parent_key}"
    if run.forked_from is not None:
        yield "fork", f"of {run.forked_from}, from {run.forked_key} on"
    if run.replaced_by is not None:
        yield "next run", str(run.replaced_by)
    if run.tags:
        yield "tags", ", ".join(run.tags)


def _end(run: RunView) -> Iterator[tuple[str, str]]:
    if run.ended_at is not None:
        yield (
            "ended",
            f"{moment(run.ended_at)}, after {span((run.ended_at - run.created_at).total_seconds())}",
        )
    if run.error is not None:
        yield "error", cut(run.error, 400)
    if run.state == "completed":
        yield "result", cut(json.dumps(run.result), 400)


def _started(run: RunView) -> str:
    ago = span((run.now - run.created_at).total_seconds())
    era = f"; era {run.era}" if run.era else ""
    return f"{moment(run.created_at)}, {ago} ago{era}"


def stands(run: RunView) -> str:
    """Its state with what it waits for, without reasons that people gave."""
    said = run.state
    if run.state in ("suspended", "paused") and (waits := waits_for(run)):
        said += f": it waits for {waits}"
    if run.worker is not None:
        said += f": on worker {run.worker}"
    elif run.job_status != "held" and run.state == "open" and run.due_at is not None and run.due_at > run.now:
        said += f": due at {moment(run.due_at)}"
    if is_cancel_asked(run) and run.cancel_requested_at is not None:
        said += f"; a cancel was asked for at {moment(run.cancel_requested_at)}"
    return said


def is_cancel_asked(run: RunView) -> bool:
    return run.cancel_requested_at is not None and run.ended_at is None


def _reasons(run: RunView) -> str:
    why = f" ({run.cancel_reason})" if is_cancel_asked(run) and run.cancel_reason else ""
    return f"{why}: {run.hold_reason}" if run.job_status == "held" else why


def drawn(run: RunView, entries: Sequence[Entry], width: int | None = None) -> Iterator[str]:
    """The lines of the timeline. Of a long one the newest; the rest are counted."""
    columns = width or shutil.get_terminal_size((100, 24)).columns
    shown = entries[-MOST_LINES:]
    if left := len(entries) - len(shown):
        yield f"({several(left, 'earlier record')}: holdfast workflow timeline)"
    waiting = [_wait(name) for name in run.waits or []]
    names = [*(_label(e) for e in shown), *waiting]
    label = min(_LABEL, max(len(name) for name in names))
    room = max(10, columns - label - 24)
    scale = _Scale(min(run.created_at, *(e.began_at for e in shown)), run.ended_at or run.now, room)
    era = shown[0].era
    if era:
        yield f"era {era}"
    for entry in shown:
        if entry.era != era:
            era = entry.era
            yield f"era {era}"
        end = entry.ended_at or run.now
        bar = scale.bar(entry.began_at, end, _ink(entry))
        took = f"{span((end - entry.began_at).total_seconds()):>7}{_note(entry)}"
        yield f"{_fit(_label(entry), label)} |{bar}| {IF_IT_FAILS if is_noted(entry) else took}".rstrip()
    for name in waiting:
        bar = scale.bar(entries[-1].ended_at or run.now, run.now, _OPEN)
        yield f"{_fit(name, label)} |{bar}| waits"


class _Scale:
    def __init__(self, start: datetime, end: datetime, room: int) -> None:
        self._start = start
        self._whole = max((end - start).total_seconds(), 1e-6)
        self._room = room

    def bar(self, start: datetime, end: datetime, ink: str) -> str:
        """At least one column, and within the room."""
        first = min(self._column(start), self._room - 1)
        last = min(max(self._column(end), first + 1), self._room)
        return " " * first + ink * (last - first) + " " * (self._room - last)

    def _column(self, at: datetime) -> int:
        return max(0, int((at - self._start).total_seconds() / self._whole * self._room))


def _label(entry: Entry) -> str:
    return "  " * (entry.key.count("/") if entry.scope not in ("saga", "undo") else 0) + entry.key


def _fit(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else text[: width - 1] + "…"


def is_noted(entry: Entry) -> bool:
    """A compensation that is ready. A line undo/... shows its run, if it ever runs."""
    return entry.scope == "saga"


def _ink(entry: Entry) -> str:
    if is_noted(entry):
        return _NOTED
    if entry.ended_at is None:
        return _OPEN
    if entry.outcome != "done":
        return _BAD
    return _WAIT if entry.kind in _WAITS else _WORK


def _note(entry: Entry) -> str:
    said = "" if entry.outcome == "done" else f" {entry.outcome}"
    if entry.attempts > 1:
        said += f" {entry.attempts} attempts"
    return f"{said}: {cut(entry.error, 60)}" if entry.error else said
