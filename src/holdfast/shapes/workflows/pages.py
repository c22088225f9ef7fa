"""Runs of workflows on the dashboard: which are stuck and on what, and the records of one run."""

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from ...errors import ConfigurationError
from ...model.duration import parse_duration
from ...operate.procedure import Procedure, run
from ...operate.wording import several
from ...pages import (
    Act,
    ActResult,
    Alert,
    Bar,
    Bars,
    Block,
    Cell,
    Code,
    Facts,
    Field,
    Filter,
    Given,
    Link,
    Offer,
    Page,
    PageRequest,
    Pages,
    Preview,
    Problem,
    Row,
    Secret,
    State,
    Table,
    Text,
    Tone,
    View,
)
from . import bars, forks, runs, verbs
from .retries import retry
from .runs import RunFilter, RunView
from .timeline import Entry, recorded
from .verbs import Shown

_TONES: dict[str, Tone] = {
    "open": "run",
    "suspended": "sched",
    "paused": "held",
    "compensating": "retry",
    "completed": "done",
    "failed": "dead",
    "cancelled": "due",
    "terminated": "dead",
    "diverged": "block",
}
_OVER = ("completed", "failed", "cancelled", "terminated")
_RUN = Field("run")
_WHY = Field("reason", "Why", required=False, hint="It is kept with the run and in the audit.")
_MOST = 500  # lines of a timeline
_PATIENCE = 0.05  # seconds of a search: a search for few among very many continues by a link


def _state(one: RunView) -> State:
    return State(one.state, _TONES.get(one.state, "due"))


def _list(asked: PageRequest) -> Procedure[View]:
    query = asked.query
    state, since = query.get("state") or None, query.get("since") or None
    seconds = None if since is None else parse_duration(since)
    if since is not None and seconds is None:
        raise ConfigurationError(f"since {since[:40]!r} is no duration. Write 90s, 15m, 2h or 3d")
    wanted = RunFilter(
        query.get("workflow") or None, None if state is None else [state], query.get("tag") or None, seconds
    )
    after = query.get("after") or None
    page = yield from verbs.list_runs(wanted, after=None if after is None else _id(after), patience=_PATIENCE)
    rows = [
        Row(
            (
                Link(one.id, f"workflows/{one.run_id}", code=True),
                Link(f"{one.workflow} v{one.version}", "workflows", {"workflow": one.workflow}),
                _state(one),
                bars.waits_for(one) or None,
                one.created_at,
                one.ended_at,
                Problem(one.error),
            ),
            _offers(one)[:1],
            str(one.run_id),
        )
        for one in page.runs
    ]
    heads = ("Run", "Workflow", "State", "Waits for~", "Started", "Ended", "Error")
    given = {
        name: value
        for name, value in query.items()
        if value and name in ("workflow", "state", "tag", "since")
    }
    more = None if page.next is None else {**given, "after": str(page.next)}
    words = ["workflow", "list"]
    for name, value in given.items():
        words += [f"--{name}", value]
    cut = "The search stopped early; there may be more." if page.cut else ""
    return View(
        [Table(heads, rows, "Runs", "the newest first", "No run fits.")], page, words, more=more, cut=cut
    )


def _id(word: str) -> UUID:
    try:
        return UUID(word)
    except ValueError:
        raise ConfigurationError(f"{word[:60]!r} is not the id of a run") from None


def _offers(one: RunView) -> list[Offer]:
    given = {"run": str(one.run_id)}
    if one.state in _OVER:
        again = [Offer("workflow retry", given)] if one.state == "failed" else []
        return [*again, Offer("workflow fork", given)]
    turn = Offer("workflow resume" if one.state == "paused" else "workflow pause", given)
    found = [
        turn,
        Offer("workflow signal", given),
        Offer("workflow cancel", given),
        Offer("workflow fork", given),
        Offer("workflow terminate", given),
    ]
    return [Offer("workflow retry", given), *found] if one.state == "diverged" else found


def _one(asked: PageRequest) -> Procedure[View]:
    whole = yield from verbs.show(asked.path["run"])
    one = whole.run
    entries = whole.entries[-_MOST:]
    note = f"{several(len(whole.entries), 'record')}"
    blocks: list[Any] = []
    if waits := bars.waits_for(one):
        blocks.append(
            Alert(
                f"It waits for {waits}.", "sched" if one.state == "suspended" else "held", "What it waits for"
            )
        )
    if one.error is not None:
        blocks.append(Table(("What happened~",), [Row((Problem(one.error),))], "It failed"))
    drawn = [_bar(entry) for entry in entries]
    blocks.append(Bars([*drawn, *_waiting(one, entries)], one.now, "Timeline", note))
    heads = ("#", "Step~", "Kind", "Outcome", "Began", "Attempts#", "Claim#", "Error")
    rows = [_record(entry) for entry in reversed(entries)]
    blocks.append(Table(heads, rows, "Records", "the last first", "Nothing is recorded yet."))
    aside: list[Block] = [Facts(_facts(whole), "Run"), *_undo(whole)]
    if whole.signals:
        aside.append(Text([_plain(s) for s in whole.signals], "Signals"))
    crumbs = (Link("Workflows", "workflows"), Link(one.workflow, "workflows", {"workflow": one.workflow}))
    return View(blocks, whole, ("workflow", "show", str(one.run_id)), one.id, crumbs, aside, _offers(one))


def _facts(whole: Shown) -> list[tuple[str, Cell]]:
    """As `workflow show` prints them; data and reasons of people are marked, because not everybody may see them."""
    one = whole.run
    own: dict[str, Cell] = {
        "state": bars.stands(one),
        "result": Secret(one.result, 400),
        "says": Secret(one.shown, 400),
    }
    rows: list[tuple[str, Cell]] = [
        (name.capitalize(), own.get(name, text))
        for name, text in bars.facts(one, whole.signals)
        if name != "error"
    ]
    if one.job_status == "held":
        rows.append(("Set aside for", Problem(one.hold_reason)))
    if bars.is_cancel_asked(one) and one.cancel_reason:
        rows.append(("To end for", Problem(one.cancel_reason)))
    return rows


def _plain(sent: Any) -> dict[str, Any]:
    return {"name": sent.name, "payload": sent.payload, "sent_at": sent.sent_at, "taken_by": sent.taken_by}


def _bar(entry: Entry) -> Bar:
    tone: Tone = (
        "done" if entry.outcome == "done" else "dead" if entry.outcome in ("failed", "timed_out") else "retry"
    )
    if entry.kind in ("sleep", "signal", "call", "child") and entry.outcome in ("done", "running"):
        tone = "sched"
    note: str = entry.outcome if entry.outcome != "done" else entry.kind
    if bars.is_noted(entry):
        tone, note = "sched", bars.IF_IT_FAILS
    return Bar(entry.key, entry.began_at, entry.ended_at, tone, note, entry.key.count("/"))


def _waiting(one: RunView, entries: Sequence[Entry]) -> list[Bar]:
    """What it waits for now, after its last record. A wait is recorded only when it is over."""
    if one.ended_at is not None or not (waits := bars.waits_for(one)):
        return []
    since = max((e.ended_at or e.began_at for e in entries), default=one.created_at)
    known = {e.key for e in entries if e.ended_at is None}
    return (
        []
        if known
        else [Bar(f"waits for {waits.partition(',')[0]}", min(since, one.now), None, "sched", "open")]
    )


def _record(entry: Entry) -> Row:
    linked = entry.key if entry.linked is None else Link(entry.key, f"jobs/{entry.linked}")
    cells = (
        entry.n,
        linked,
        entry.kind,
        entry.outcome,
        entry.began_at,
        entry.attempts,
        entry.generation,
        Problem(entry.error),
    )
    return Row(cells, (), str(entry.n))


def _undo(whole: Shown) -> list[Facts]:
    """The compensations that a cancel would run, in order."""
    left = verbs.undone(whole.entries, whole.run.era)
    if not left or whole.run.state in _OVER:
        return []
    return [
        Facts([(str(n), Code(key)) for n, key in enumerate(left, 1)], "A cancel would undo, in this order")
    ]


def _in_use() -> Procedure[bool]:
    return bool((yield from run(lambda: runs.listed(RunFilter(), None, 1))))


# Acts ---------------------------------------------------------------------------------------------------------------


def _said(act: Any, text: str) -> ActResult:
    return ActResult(
        f"Run {act.run.id} of {act.run.workflow} {text}.",
        {"changed": act.changed},
        f"workflows/{act.run.run_id}",
    )


def _pause(given: Given) -> Procedure[ActResult]:
    act = yield from verbs.pause(given["run"])
    return _said(act, "is paused" if act.changed else "was paused already")


def _resume(given: Given) -> Procedure[ActResult]:
    act = yield from verbs.resume(given["run"])
    return _said(act, "is resumed" if act.changed else "was not paused")


def _signal(given: Given) -> Procedure[ActResult]:
    try:
        payload = json.loads(given.get("payload") or "null")
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"the payload is not JSON: {error}. A text needs quotes of its own"
        ) from None
    act = yield from verbs.signal(given["run"], given["signal"], payload)
    return _said(act, f"got the signal {given['signal']}")


def _cancel(given: Given) -> Procedure[ActResult]:
    act = yield from verbs.cancel(given["run"], given.get("reason", ""))
    return _said(act, "is asked to end" if act.changed else "was asked to end before")


def _preview_cancel(given: Given) -> Procedure[Preview]:
    whole = yield from verbs.show(given["run"])
    left = verbs.undone(whole.entries, whole.run.era)
    undo = f" It would undo, in this order: {', '.join(left)}." if left else " It has nothing to undo."
    return Preview(f"Run {whole.run.id} of {whole.run.workflow} would be asked to end.{undo}")


def _retry(given: Given) -> Procedure[ActResult]:
    act = yield from retry(given["run"])
    again = f", and makes again: {', '.join(act.about)}" if act.about else ""
    return _said(act, f"is tried again{again}")


def _terminate(given: Given) -> Procedure[ActResult]:
    act = yield from verbs.terminate(given["run"], given.get("reason", ""))
    left = f"; not undone: {', '.join(act.about)}" if act.about else ""
    return _said(act, f"is terminated{left}")


def _preview_terminate(given: Given) -> Procedure[Preview]:
    act = yield from verbs.terminate(given["run"], dry_run=True)
    left = f" It would leave undone: {', '.join(act.about)}." if act.about else ""
    return Preview(
        f"Run {act.run.id} of {act.run.workflow} would end at once, without its compensations.{left}", 1
    )


def _preview_fork(given: Given) -> Procedure[Preview]:
    whole = yield from verbs.show(given["run"])
    entries = yield from run(lambda: recorded(whole.run.run_id))
    first, before = forks.kept(whole.run, entries, given["step"])
    said = f"Another run would be started with {several(len(before), 'record')} of run {whole.run.id}, and make again "
    return Preview(f"{said}from {first.key} on. This one stays as it is.")


def _fork(given: Given) -> Procedure[ActResult]:
    version = given.get("version") or ""
    if version and not (version.isascii() and version.isdigit() and len(version) < 10):
        raise ConfigurationError(f"version must be a whole number, not {version[:40]!r}")
    made = yield from verbs.fork(
        given["run"], given["step"], new_id=given.get("id") or None, version=int(version) if version else None
    )
    said = f"Run {made.run.id} of {made.run.workflow} is forked as {made.id}, from {made.step} on."
    return ActResult(said, {"run": made.run_id, "id": made.id, "kept": made.kept}, f"workflows/{made.run_id}")


def _fork_words(given: Given) -> list[str]:
    more = [word for name in ("id", "version") if given.get(name) for word in (f"--{name}", given[name])]
    return ["workflow", "fork", given["run"], "--from", given.get("step", "STEP"), *more]


def _words(verb: str) -> Any:
    def words(given: Given) -> list[str]:
        more = [given.get("signal", "NAME"), given.get("payload") or "null"] if verb == "signal" else []
        reason = ["--reason", given["reason"]] if given.get("reason") else []
        return ["workflow", verb, given["run"], *more, *reason, *(["--yes"] if verb == "terminate" else [])]

    return words


PAGES = Pages(
    [
        Page(
            "workflows",
            "Workflows",
            _list,
            "Flow",
            "workflows",
            "A workflow is one process of many durable steps, which survives crashes and deploys. "
            "Declare one: @app.workflow, and start a run: checkout.start(order_id=1).",
            _in_use,
            (
                Filter("state", "State", runs.STATES),
                Filter("workflow", "Workflow"),
                Filter("tag", "Tag"),
                Filter("since", "Started within"),
            ),
            takes=("after",),
        ),
        Page("workflows/{run}", "Run", _one),
    ],
    [
        Act("workflow pause", "Pause", _pause, (_RUN,), _words("pause"), at_once=True),
        Act("workflow resume", "Resume", _resume, (_RUN,), _words("resume"), at_once=True),
        Act(
            "workflow signal",
            "Signal",
            _signal,
            (_RUN, Field("signal", "Signal"), Field("payload", "Payload, as JSON", "json", required=False)),
            _words("signal"),
        ),
        Act("workflow cancel", "Cancel and undo", _cancel, (_RUN, _WHY), _words("cancel"), _preview_cancel),
        Act("workflow retry", "Retry", _retry, (_RUN,), _words("retry")),
        Act(
            "workflow fork",
            "Fork",
            _fork,
            (
                _RUN,
                Field(
                    "step",
                    "The first step to make again",
                    hint="Its key, or its number in the records.",
                    shown=True,
                ),
                Field("id", "Id of the new run", required=False, hint="Empty: one is made up."),
                Field("version", "Version", required=False, hint="Empty: that of the old one."),
            ),
            _fork_words,
            _preview_fork,
        ),
        Act(
            "workflow terminate",
            "Terminate",
            _terminate,
            (_RUN, _WHY),
            _words("terminate"),
            _preview_terminate,
            "admin",
            deletes=True,
            needs_why=True,
        ),
    ],
)
