"""Runs of workflows on the dashboard: which are stuck and on what, and the records of one run."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from ...errors import ConfigurationError
from ...model.duration import parse_duration
from ...operate.procedure import Procedure, run
from ...operate.refusal import Refused
from ...operate.wording import several
from ...pages import (
    Alert,
    Bar,
    Bars,
    Block,
    Cell,
    Code,
    Facts,
    Filter,
    Link,
    Offer,
    Page,
    PageRequest,
    Pages,
    Problem,
    Row,
    Secret,
    State,
    Table,
    Text,
    Tone,
    View,
)
from . import bars, runs, verbs
from .page_acts import ACTS
from .runs import RunFilter, RunView
from .signal_forms import signal_act
from .states import ENDED, STATES
from .timeline import Entry
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
_MOST_LINES = 500  # lines of a timeline
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
    if one.state in ENDED:
        again = [Offer("workflow retry", given)] if one.state == "failed" else []
        return [*again, Offer("workflow fork", given)]
    turn = Offer("workflow resume" if one.state == "paused" else "workflow pause", given)
    found = [
        turn,
        *(
            Offer("workflow signal", {**given, "signal": name}, f"Signal {name}")
            for name in (one.waits or [])[:3]
        ),
        Offer("workflow signal", given, "Another signal" if one.waits else ""),
        Offer("workflow cancel", given),
        Offer("workflow fork", given),
        Offer("workflow terminate", given),
    ]
    return [Offer("workflow retry", given), *found] if one.state == "diverged" else found


def _one(asked: PageRequest) -> Procedure[View]:
    whole = yield from _shown(asked.path["run"])
    one = whole.run
    entries = whole.entries[-_MOST_LINES:]
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
    heads = ("No.#", "Step~", "Kind", "Outcome", "Began", "Attempts#", "Claim#", "Error")
    rows = [_record(entry) for entry in reversed(entries)]
    blocks.append(Table(heads, rows, "Records", "the last first", "Nothing is recorded yet."))
    aside: list[Block] = [Facts(_facts(whole), "Run"), *_undo(whole)]
    if whole.signals:
        aside.append(Text([_plain(s) for s in whole.signals], "Signals"))
    crumbs = (Link("Workflows", "workflows"), Link(one.workflow, "workflows", {"workflow": one.workflow}))
    return View(blocks, whole, ("workflow", "show", str(one.run_id)), one.id, crumbs, aside, _offers(one))


def _shown(given: str) -> Procedure[Shown]:
    """By its id, or as `checkout/order:12`, so that who knows the two needs no id."""
    try:
        return (yield from verbs.show(given))
    except Refused as error:
        workflow, slash, name = given.partition("/")
        if error.code != "no_run" or not (slash and name):
            raise
    return (yield from verbs.show(name, workflow))


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
        rows.append(("To end for", Problem(one.cancel_reason, words=True)))
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
    if not left or whole.run.state in ENDED:
        return []
    return [
        Facts([(str(n), Code(key)) for n, key in enumerate(left, 1)], "A cancel would undo, in this order")
    ]


def _in_use() -> Procedure[bool]:
    return bool((yield from run(lambda: runs.listed(RunFilter(), None, 1))))


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
                Filter("state", "State", STATES),
                Filter("workflow", "Workflow"),
                Filter("tag", "Tag"),
                Filter("since", "Started within"),
            ),
            takes=("after",),
            live=5,
        ),
        Page("workflows/{run}", "Run", _one, live=2),
    ],
    ACTS,
    lambda tasks: (signal_act(tasks),),
)
