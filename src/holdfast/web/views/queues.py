"""Which queue is behind, and because of what: its limit, a pause, no hands, slow handlers?"""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigurationError
from holdfast.model import state
from holdfast.model.duration import seconds
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure
from holdfast.pages import (
    Alert,
    Cell,
    Code,
    Counted,
    Facts,
    Figures,
    Link,
    Offer,
    Page,
    PageRequest,
    Row,
    Span,
    State,
    Table,
    Use,
    View,
)
from holdfast.store.queue_load import Count, QueueLoad
from holdfast.web.filters import text
from holdfast.web.shown import number, span
from holdfast.web.views.audit import entries_of
from holdfast.web.views.drawn import later
from holdfast.web.views.overview import Numbers, QueueRow, numbers_of, queues_worst_first
from holdfast.web.zones import zone_name

if TYPE_CHECKING:
    from holdfast.web.site import Site

_HEADS = (
    "Queue~",
    "State",
    "Due#",
    "Oldest that could run#",
    "Running#",
    "Scheduled#",
    "Held#",
    "Blocked#",
    "Dead#",
    "Done /s#",
    "Failed %#",
)
_STATES = (
    ("Due", state.PENDING),
    ("Running", state.PROCESSING),
    ("Scheduled", state.SCHEDULED),
    ("Held", state.HELD),
    ("Blocked", state.BLOCKED),
    ("Quarantined", state.QUARANTINED),
)


SPANS = ("1h", "6h", "1d", "7d", "30d")
_SAID = {"1h": "hour", "6h": "6 hours", "1d": "day", "7d": "7 days", "30d": "30 days"}
_STACKED = (("running", "run"), ("due", "due"), ("behind another job", "block"), ("held", "held"))


def pages(site: "Site") -> list[Page]:
    def every(asked: PageRequest) -> Procedure[View]:
        numbers = yield from later(lambda: numbers_of(site))
        rows = [_row(row) for row in queues_worst_first(numbers)]
        table = Table(_HEADS, rows, "Queues", "the worst first; counts stop at 10,000", "No queues.")
        return View([table], numbers.found.queues, ("queue", "list"), offers=(Offer("queue create", {}),))

    def one(asked: PageRequest) -> Procedure[View]:
        return (yield from _one(site, asked.path["queue"], text(asked.query, "history") or "1h"))

    return [
        Page("queues", "Queues", every, "Work", "queues", live=2),
        Page("queues/{queue}", "Queue", one, takes=("history",), live=5),
    ]


def _link(name: str, word: str, count: Count) -> Cell:
    """Every number is a link to the list behind it."""
    return Link(number(count), "jobs", {"queue": name, "state": word}) if count.count else 0


def _paused(load: QueueLoad) -> str:
    return f"for {span(load.paused_seconds)} by {load.paused_by or 'somebody'}"


def _row(row: QueueRow) -> Row:
    load = row.load
    cells: list[Cell] = [
        Link(load.name, f"queues/{load.name}"),
        State("takes jobs", "done") if load.paused_at is None else State("paused", "held", _paused(load)),
        _link(load.name, state.PENDING, load.pending),
        Span(row.oldest),
        _link(load.name, state.PROCESSING, load.processing),
        _link(load.name, state.SCHEDULED, load.scheduled),
        _link(load.name, state.HELD, load.held),
        _link(load.name, state.BLOCKED, load.blocked),
        Link(number(row.dead), "dead", {"queue": load.name}) if row.dead.count else 0,
        round(row.done, 1),
        None if row.failed is None else round(100 * row.failed, 1),
    ]
    return Row(cells, (turn(load),), load.name)


def turn(load: QueueLoad) -> Offer:
    """Pause it, or resume it."""
    if load.paused_at is None:
        return Offer("queue pause", {"queue": load.name})
    return Offer("queue resume", {"queue": load.name})


def _history(name: str, span_of_time: str) -> Procedure[Counted]:
    """As `holdfast stats --history` has it. A step without a sample is empty."""
    if span_of_time not in SPANS:
        raise ConfigurationError(f"history={span_of_time[:40]!r} is not one of {', '.join(SPANS)}")
    found = yield from Operator.samples.procedure(queue=name, since=span_of_time)
    by = {one.at: (one.running, max(one.due - one.behind, 0), one.behind, one.held) for one in found.samples}
    every, last = timedelta(minutes=found.step_minutes), max(by, default=None)
    steps = round(seconds(span_of_time, "history") / every.total_seconds())
    times = [] if last is None else [last - n * every for n in reversed(range(steps))]
    points = [(at, by.get(at, (0, 0, 0, 0))) for at in times]
    others = [Link(other, f"queues/{name}", {"history": other}) for other in SPANS if other != span_of_time]
    step = "minute" if found.step_minutes == 1 else f"{found.step_minutes} minutes"
    return Counted(
        _STACKED,
        points,
        f"The last {_SAID[span_of_time]}",
        f"the most in each {step}, {zone_name(last)}",
        others,
    )


def _one(site: "Site", name: str, history: str) -> Procedure[View]:
    rules = yield from Operator.show_rules.procedure(name)
    numbers: Numbers = yield from later(lambda: numbers_of(site))
    stats = yield from Operator.stats.procedure(minutes=60, queue=name)
    row = next((row for row in queues_worst_first(numbers) if row.load.name == name), None)
    blocks: list[Any] = []
    offers: list[Offer] = []
    if row is not None:
        load = row.load
        offers.append(turn(load))
        if load.paused_at is not None:
            said = f"Paused {_paused(load)}. No claim takes a job of it."
            blocks.append(Alert(said, "held", "This queue is paused"))
        counts = [(label, _link(name, word, getattr(load, word))) for label, word in _STATES]
        blocks.append(Figures([*counts, ("Longest wait", Span(row.oldest))], "Now"))
    heads = (
        "Task~",
        "Completed#",
        "Failed#",
        "Dead#",
        "Mean run#",
        "Longest run#",
        "Mean wait#",
        "Longest wait#",
    )
    tasks = [
        Row((Link(t.task or "", "jobs", {"queue": name, "task": t.task or ""}), t.completed, t.failed, t.dead,
             Span(t.mean_run), Span(t.max_run), Span(t.mean_wait), Span(t.max_wait)), key=t.task or "")
        for t in stats.tasks
    ]  # fmt: skip
    blocks.append((yield from _history(name, history)))
    blocks.append(Table(heads, tasks, "Tasks", "the last hour", "Nothing was done in the last hour."))
    used: list[tuple[str, Cell]] = [(rule, Code(str(value))) for rule, value in rules.rules.items()]
    limit = rules.rules.get("concurrency")
    if rules.running is not None and isinstance(limit, int):
        used.append(("Running", Use(rules.running, limit)))
    if rules.tokens is not None:
        used.append(("Tokens left", round(rules.tokens, 1)))
    if rules.keys_full:
        used.append(("Keys at their limit", rules.keys_full))
    aside = Facts(
        [*(used or [("Rules", State("none but the plain ones"))]), ("What was done to it", entries_of(name))],
        "Rules and limits",
        (Offer("queue set", {"queue": name, "rule": "concurrency"}, "Change a limit…"),),
    )
    data = {"rules": rules, "stats": stats, "load": None if row is None else row.load}
    return View(blocks, data, ("queue", "show", name), name, (Link("Queues", "queues"),), (aside,), offers)
