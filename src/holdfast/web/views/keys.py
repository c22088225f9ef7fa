"""Keys: their owners; and which are stuck, hot or parked."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.model.bucket import bucket
from holdfast.model.ring import owners
from holdfast.model.state import BLOCKED, PARKED
from holdfast.operate.keys import HotKey
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure
from holdfast.operate.ring import RingReport, RingWorker
from holdfast.operate.wording import several
from holdfast.pages import (
    Alert,
    Block,
    Code,
    Facts,
    Filter,
    Link,
    Offer,
    Owned,
    Page,
    PageRequest,
    Pinned,
    Problem,
    Ring,
    Row,
    State,
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

PINS = 8  # keys that the picture of a ring names
MOVES = 6  # workers that are named where buckets go to
_STUCK = ("Key", "Queue", "Why", "Since", "Jobs behind#", "Job in the way", "What happened~")


def pages(site: "Site") -> list[Page]:
    def every(asked: PageRequest) -> Procedure[View]:
        stuck = yield from Operator.stuck_keys.procedure()
        hot = yield from Operator.hot_keys.procedure()
        held = yield from Operator.held_keys.procedure()
        rings = yield from Operator.rings.procedure()
        note = "and there are more" if stuck.more else ""
        blocks: list[Block] = [
            Table(_STUCK, [_stuck(one) for one in stuck.keys], "Keys that do not move", note, "Every key moves."),
            Table(
                ("Key", "Queue", "Share of what is due", "Jobs#", "Finished last minute#", "Hot"),
                [
                    Row((_key(k.queue, k.key), Link(k.queue, f"queues/{k.queue}"), _share(k),
                         None if k.jobs is None else number(k.jobs), k.finished, State("hot", "retry") if k.hot else None),
                        key=f"{k.queue}:{k.key}")
                    for k in hot
                ],
                "Keys with the most work",
                "of the oldest and the newest due jobs",
                "No ordered queue has due jobs.",
            ),
            *[_ring(report) for report in rings],
        ]  # fmt: skip
        data = {"stuck": stuck, "hot": hot, "held": held, "rings": rings}
        aside = [
            ring_of(report, "", _pinned(report.queue, stuck.keys, hot))
            for report in rings[:1]
            if report.workers
        ]
        return View(blocks, data, ("keys", "blocked"), aside=aside)

    def queue(asked: PageRequest) -> Procedure[View]:
        name = asked.path["queue"]
        key = text(asked.query, "key")
        if key is not None:
            return (yield from _one_key(name, key))
        return (yield from _keys_of(name, text(asked.query, "after"), text(asked.query, "worker") or ""))

    return [
        Page("keys", "Keys and ring", every, "Work", "ring", live=5),
        Page(
            "keys/{queue}", "Keys", queue, filters=(Filter("key", "Key"),), takes=("after", "worker"), live=5
        ),
    ]


def _share(one: HotKey) -> Use:
    return Use(round(100 * one.share), 100, "" if one.hot else "run")


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
        Link(one.task or str(one.job_id), f"jobs/{one.job_id}"),
        Problem(one.note),
    )
    return Row(cells, offers, f"{one.queue}:{one.key}")


def _release(one: StuckKey) -> Offer:
    return Offer("keys release", {"queue": one.queue, "key": one.key})


def _pinned(queue: str, stuck: Sequence[StuckKey], hot: Sequence[HotKey]) -> list[Pinned]:
    """The keys of a queue that are worth to be seen in its ring: those that do not move, then those with much work."""
    found = [Pinned(bucket(one.key), one.key, "block") for one in stuck if one.queue == queue]
    found += [Pinned(bucket(one.key), one.key, "retry") for one in hot if one.queue == queue and one.hot]
    return list({one.bucket: one for one in reversed(found)}.values())[::-1][:PINS]


def ring_of(report: RingReport, chosen: str, pinned: Sequence[Pinned] = ()) -> Ring:
    """The worker that was chosen in colour, or the one of the first seat."""
    names = [one.worker for one in report.workers]
    of = chosen if chosen in names else names[0] if names else ""
    owned = [
        Owned(
            f"{w.host}:{w.pid}",
            w.ranges,
            Link(w.worker, f"keys/{report.queue}", {"worker": w.worker}),
            w.worker == of,
        )
        for w in report.workers
    ]
    it = next((w for w in report.workers if w.worker == of), None)
    note = "" if it is None else f"{it.host}:{it.pid} in colour"
    return Ring(report.buckets, owned, f"Owners of {report.queue}", note, pinned)


def _ring(report: RingReport) -> Table:
    rows = [
        Row(
            (
                Link(w.worker, "workers", code=True),
                w.host,
                w.seat,
                Use(w.buckets, report.buckets, "run"),
                _if_gone(report, w),
            ),
            key=w.worker,
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


def _if_gone(report: RingReport, leaves: RingWorker) -> str:
    """As the ring without that worker would be: nobody has to leave to find out."""
    left = {one.seat: one for one in report.workers if one is not leaves}
    if not left:
        return "nobody is left"
    mine = owners([one.seat for one in report.workers])
    then = owners(list(left))
    moves = Counter(after for before, after in zip(mine, then, strict=True) if before == leaves.seat)
    said = [f"{count} to {left[seat].host}:{left[seat].pid}" for seat, count in moves.most_common(MOVES)]
    more = f" and {len(moves) - MOVES} more" if len(moves) > MOVES else ""
    return f"its {leaves.buckets} buckets move: {', '.join(said)}{more}; no other bucket moves"


def _keys_of(queue: str, after: str | None, worker: str) -> Procedure[View]:
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
            ),
            key=k.key,
        )
        for k in found.keys
    ]
    heads = ("Key", "Jobs#", "First job", "State", "Due", "Note~")
    table = Table(heads, rows, "Keys with live jobs", "by bucket", "No key has live jobs.")
    rings = yield from Operator.rings.procedure(queue)
    more = None if found.next is None else {"after": found.next}
    crumbs = (Link("Keys and ring", "keys"),)
    blocks = [table, *[_ring(report) for report in rings]]
    stuck = yield from Operator.stuck_keys.procedure(queue)
    aside = [ring_of(report, worker, _pinned(queue, stuck.keys, ())) for report in rings if report.workers]
    return View(blocks, found, ("keys", "list", queue), queue, crumbs, aside, more=more)


def _one_key(queue: str, key: str) -> Procedure[View]:
    stream = yield from Operator.show_key.procedure(queue, key)
    rows = [
        Row((j.sequence, Link(j.task, f"jobs/{j.id}"), state_word(j.state), f"{j.attempts}/{j.max_attempts}", j.due_at,
             None if j.worker is None else Code(j.worker), Problem(j.note)), key=str(j.id))
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
        ("Owner", Code(r.key.worker) if r.key.worker else "the first worker to claim it")
        for r in owner
        if r.key
    ]
    crumbs = (Link("Keys and ring", "keys"), Link(queue, f"keys/{queue}"))
    aside = (Facts(facts, "In the ring"),)
    return View(blocks, stream, ("keys", "show", queue, key), key, crumbs, aside, offers)
