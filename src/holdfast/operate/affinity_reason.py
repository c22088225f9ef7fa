"""Which worker is expected to take a job of a queue with affinity, as a sentence."""

from collections.abc import Sequence
from dataclasses import replace

from ..model.ring import owners
from ..store.explain import Seen, WorkerSeen
from .advice import advise
from .reason import Reason
from .wording import cut, span


def with_owner(why: Reason, seen: Seen, live: Sequence[WorkerSeen], takeover: float) -> Reason:
    """The reason why a due job waits, with the worker that has its key."""
    found = seen.affinity
    alive = {worker.id: worker for worker in live}
    seats = {seat: worker for seat, worker in found.seats if worker in alive} if found else {}
    if found is None or not seats:
        return why
    owner = alive[seats[owners(seats)[found.bucket]]]
    left = takeover - (seen.job.now - seen.job.available_at).total_seconds()
    soon = f"in {span(left)}" if left > 0 else "from now on"
    ring = advise("show_ring", queue=seen.job.queue, key=found.key)
    if why.code == "slots_busy" or owner.running < owner.concurrency:
        said = (
            f" Its key {cut(found.key)} is with worker {owner.id}, which is expected to take it; "
            f"any other may once it is due for {span(takeover)}, {soon}."
        )
        return replace(why, sentence=why.sentence + said, advice=[*why.advice, ring])
    said = (
        f"Its key {cut(found.key)} is with worker {owner.id}, which has no free slot ({owner.running:,} jobs, "
        f"{owner.concurrency:,} slots). Any other takes it once it is due for {span(takeover)}, {soon}."
    )
    return Reason("owner_busy", said, [ring, *why.advice])
