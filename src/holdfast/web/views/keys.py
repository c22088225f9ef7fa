"""Who owns which key; which key is stuck, hot or parked?"""

from typing import TYPE_CHECKING, Any

from holdfast.model.state import BLOCKED, PARKED
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure
from holdfast.operate.ring import RingReport
from holdfast.operate.wording import several
from holdfast.pages import (
    Alert,
    Asked,
    Block,
    Code,
    Facts,
    Link,
    Offer,
    Page,
    Problem,
    Row,
    Table,
    Use,
    View,
)
from holdfast.store.keys import StuckKey
from holdfast.web.filters import text
from holdfast.web.shown import number
from holdfast.web.views.drawn import state_word

if TYPE_CHECKING:
    from holdfast.web.site import Site

_STUCK = ("Key", "Queue", "Why", "Since", "Jobs behind#", "Job in the way", "What happened~")


def pages(site: "Site") -> list[Page]:
    def every(asked: Asked) -> Procedure[View]:
        stuck = yield from Operator.stuck_keys.procedure()
        hot = yield from Operator.hot_keys.procedure()
        held = yield from Operator.held_keys.procedure()
        rings = yield from Operator.rings.procedure()
        note = "and there are more" if stuck.more else ""
        blocks: list[Block] = [
            Table(_STUCK, [_stuck(one) for one in stuck.keys], "Keys that do not move", note, "Every key moves."),
            Table(
                ("Key", "Queue", "Share of what is due", "Jobs#", "Finished last minute#", ""),
                [
                    Row((_key(k.queue, k.key), Link(k.queue, f"queues/{k.queue}"), Use(round(100 * k.share), 100),
                         None if k.jobs is None else number(k.jobs), k.finished, "hot" if k.hot else ""))
                    for k in hot
                ],
                "Keys with the most work",
                "of the oldest and the newest due jobs",
                "No ordered queue has due jobs.",
            ),
            *[_ring(report) for report in rings],
        ]  # fmt: skip
        data = {"stuck": stuck, "hot": hot, "held": held, "rings": rings}
        return View(blocks, data, ("keys", "blocked"))

    def queue(asked: Asked) -> Procedure[View]:
        name = asked.path["queue"]
        key = text(asked.query, "key")
        if key is not None:
            return (yield from _one_key(name, key))
        return (yield from _keys_of(name, text(asked.query, "after")))

    return [
        Page("keys", "Keys and ring", every, "Work", "ring"),
        Page("keys/{queue}", "Keys", queue, takes=("key", "after")),
    ]


def _key(queue: str, key: str) -> Link:
    return Link(key, f"keys/{queue}", {"key": key}, code=True)


def _stuck(one: StuckKey) -> Row:
    offers = (_release(one),) if one.why in (BLOCKED, PARKED) else ()
    cells = (
        _key(one.queue, one.key),
        Link(one.queue, f"queues/{one.queue}"),
        state_word(one.why),
        one.since,
        number(one.behind),
        Link(str(one.job_id), f"jobs/{one.job_id}", code=True),
        Problem(one.note),
    )
    return Row(cells, offers, f"{one.queue}:{one.key}")


def _release(one: StuckKey) -> Offer:
    return Offer("keys release", {"queue": one.queue, "key": one.key})


def _ring(report: RingReport) -> Table:
    rows = [
        Row(
            (
                Link(w.worker, "workers", code=True),
                w.host,
                w.seat,
                Use(w.buckets, report.buckets),
                _if_gone(report, w.buckets),
            )
        )
        for w in report.workers
    ]
    unserved = f"; nobody owns {report.unserved} of {report.buckets} buckets" if report.unserved else ""
    return Table(
        ("Worker", "Host", "Seat#", "Owns", "If it leaves~"),
        rows,
        f"Ring of {report.queue}",
        f"{several(len(report.workers), 'worker')}{unserved}",
        "No worker serves this queue.",
    )


def _if_gone(report: RingReport, buckets: int) -> str:
    others = len(report.workers) - 1
    if not others:
        return "nobody is left"
    where = "the other one" if others == 1 else f"the {others} others"
    return f"its {buckets} buckets move to {where}, and no other bucket moves"


def _keys_of(queue: str, after: str | None) -> Procedure[View]:
    found = yield from Operator.list_keys.procedure(queue, after=after)
    rows = [
        Row(
            (
                _key(queue, k.key),
                number(k.jobs),
                Link(k.task, f"jobs/{k.job_id}"),
                state_word(k.state),
                k.due_at,
                Problem(k.note),
            )
        )
        for k in found.keys
    ]
    heads = ("Key", "Jobs#", "First job", "State", "Due", "Note~")
    table = Table(heads, rows, "Keys with live jobs", "by bucket", "No key has live jobs.")
    rings = yield from Operator.rings.procedure(queue)
    more = None if found.next is None else {"after": found.next}
    crumbs = (Link("Keys and ring", "keys"),)
    blocks = [table, *[_ring(report) for report in rings]]
    return View(blocks, found, ("keys", "list", queue), queue, crumbs, more=more)


def _one_key(queue: str, key: str) -> Procedure[View]:
    stream = yield from Operator.show_key.procedure(queue, key)
    rows = [
        Row((j.sequence, Link(j.task, f"jobs/{j.id}"), state_word(j.state), f"{j.attempts}/{j.max_attempts}", j.due_at,
             None if j.worker is None else Code(j.worker), Problem(j.note)))
        for j in stream.front
    ]  # fmt: skip
    heads = ("Sequence#", "Task", "State", "Attempts", "Due", "Worker", "Note~")
    blocks: list[Any] = []
    offers: list[Offer] = [Offer("keys hold", {"queue": queue, "key": key})]
    if stream.parked is not None:
        said = f"Parked for dead letter {stream.parked.job_id}. Its jobs wait until somebody releases it."
        offers.append(_release(stream.parked))
        blocks.append(Alert(said, "block", "This key is parked"))
    elif any(job.state == BLOCKED for job in stream.front):
        offers.append(Offer("keys release", {"queue": queue, "key": key}))
    if stream.hold is not None:
        offers.append(Offer("keys lift", {"queue": queue, "key": key}))
        blocks.append(
            Alert(
                f"Its jobs wait: {stream.hold.reason or 'somebody asked for it'}", "held", "This key is held"
            )
        )
    blocks.append(
        Table(
            heads,
            rows,
            "In their order",
            f"{number(stream.jobs)} live {'job' if stream.jobs.count == 1 else 'jobs'}",
            "No live job has this key.",
        )
    )
    owner = yield from Operator.rings.procedure(queue, key=key)
    facts = [("Bucket", r.key.bucket) for r in owner if r.key] + [
        ("Owner", Code(r.key.worker) if r.key.worker else "whoever comes first") for r in owner if r.key
    ]
    crumbs = (Link("Keys and ring", "keys"), Link(queue, f"keys/{queue}"))
    aside = (Facts(facts, "In the ring"),)
    return View(blocks, stream, ("keys", "show", queue, key), key, crumbs, aside, offers)
