"""Workers: which are alive, what they run, whether they are well."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.model.vitals import Vitals
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure
from holdfast.pages import (
    Cell,
    Code,
    Filter,
    Link,
    Offer,
    Page,
    PageRequest,
    Row,
    Span,
    State,
    Table,
    Tone,
    Use,
    View,
)
from holdfast.store.queue_load import WorkerLine
from holdfast.web.filters import text

if TYPE_CHECKING:
    from holdfast.web.site import Site

_HEADS = (
    "Worker",
    "Host",
    "State",
    "Heartbeat#",
    "Running",
    "Memory#",
    "Loop lag#",
    "Load#",
    "Connections#",
    "Queues~",
    "Release",
    "Since",
)
MOST_HOSTS = 4  # that are offered as a whole
_HELD = ("Worker", "Job", "Task~", "Queue", "Held for#", "Lease left#", "Attempts#")


def page(site: "Site") -> Page:
    late_after = site.app.settings.dead_after if site.app._given_settings else 10.0

    def load(asked: PageRequest) -> Procedure[View]:
        gone = text(asked.query, "gone") == "yes"
        found = yield from Operator.list_workers.procedure(with_gone=gone)
        held = yield from Operator.ask.procedure("worker-jobs", limit=200)
        lost = yield from Operator.ask.procedure("lost-workers", limit=50)
        rows = [_row(worker, late_after) for worker in found]
        running = [_held(line) for line in held.rows]
        vanished = [
            Row((r["host"], r["release"], r["lost"], r["last_lost_at"], Span(r["mean_life_seconds"])))
            for r in lost.rows
        ]
        blocks = [
            Table(
                _HEADS,
                rows,
                "Workers",
                f"{len(found)}",
                "No worker is alive. Start one: holdfast worker MODULE:APP",
            ),
            Table(_HELD, running, "What they run", "the longest first", "Nothing is running."),
        ]
        if vanished:
            heads = ("Host", "Release", "Lost#", "Last at", "Lived for#")
            blocks.append(Table(heads, vanished, "Lost in the last hour"))
        data = {"workers": found, "running": held.rows, "lost": lost.rows}
        words = ("workers", "list", *(("--all",) if gone else ()))
        return View(blocks, data, words, offers=_drains(found))

    filters = (Filter("gone", "Also those that are gone", ("yes",)),)
    return Page("workers", "Workers", load, "Work", "workers", filters=filters, live=2)


def _drains(found: Sequence[WorkerLine]) -> list[Offer]:
    """All of them, or those of a host that has several."""
    hosts = Counter(worker.host for worker in found if worker.status == "alive")
    some = [host for host, count in hosts.items() if count > 1][:MOST_HOSTS] if len(hosts) > 1 else []
    offers = [Offer("workers drain", {"host": host}, f"Drain {host}…") for host in some]
    return [*offers, Offer("workers drain", {"all": "1"}, "Drain all…")] if found else []


def _held(line: Mapping[str, Any]) -> Row:
    cells = (
        Code(line["worker"]),
        Link(str(line["job_id"]), f"jobs/{line['job_id']}", code=True),
        line["task"],
        Link(line["queue"], f"queues/{line['queue']}"),
        Span(line["held_seconds"]),
        Span(line["lease_left_seconds"]),
        line["attempts"],
    )
    return Row(cells, key=str(line["job_id"]))


def _vitals(found: Vitals | None) -> tuple[Cell, ...]:
    if found is None:
        return None, None, None, None
    memory = None if found.memory is None else f"{found.memory / 2**20:,.0f} MiB"
    return memory, f"{1000 * found.lag:.0f} ms", found.load, found.connections


def _row(worker: WorkerLine, late_after: float) -> Row:
    tone: Tone = "done" if worker.status == "alive" else "due" if worker.status == "gone" else "retry"
    late = worker.status == "alive" and worker.last_seen_seconds > late_after
    state = State("late", "dead") if late else State(worker.status, tone)
    cells: tuple[Cell, ...] = (
        Link(worker.id, "jobs", {"worker": worker.id}, code=True),
        ", ".join([worker.host, *(f"{k}={v}" for k, v in worker.labels.items())]),
        state,
        Span(worker.last_seen_seconds),
        Use(worker.running, worker.concurrency),
        *_vitals(worker.vitals),
        ", ".join(worker.queues),
        Code(worker.release),
        worker.started_at,
    )
    offers = (Offer("workers drain", {"ids": worker.id}),) if worker.status == "alive" else ()
    return Row(cells, offers, worker.id)
