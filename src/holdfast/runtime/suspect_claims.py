"""Claims of suspects, and of the one job that is tried while a breaker is open."""

import time
from typing import TYPE_CHECKING

from .inflight import Running

if TYPE_CHECKING:
    from .worker import Worker


async def claim_suspects(worker: "Worker", *, spare: bool) -> None:
    """As many as they have room for now. `spare`: other jobs were asked for, and none waits for the free slots."""
    while room := worker.suspects.due(_free(worker), spare=spare):
        began = time.monotonic()
        jobs = await worker.claimer.claim_suspects(worker.membership.id, room)
        if not jobs:
            return
        _took(worker, worker.claimer.pace.mark(worker.inflight.add(jobs, began)))


def _free(worker: "Worker") -> int:
    """Slots for suspects. Quick jobs that wait here for a slot would keep them out for as long as there is a backlog, so one
    suspect at a time joins them: its slot comes in a moment."""
    soon = 1 if worker.ready and not worker.slots.blocked else 0
    return max(soon, worker.slots.free - len(worker.ready))


def _took(worker: "Worker", held: list[Running]) -> None:
    worker.suspects.took([running for running in held if running.claimed.suspect])
    worker.ready.extend(worker.batches.alone(worker.lanes.admit(held)))


async def claim_trial(worker: "Worker") -> None:
    if not worker.breakers.due(worker.slots.free - len(worker.ready)):
        return
    can_isolate, began = worker.suspects.room(1, spare=True) > 0, time.monotonic()
    for job in await worker.breakers.trial(worker.claimer, worker.membership.id, suspects=can_isolate):
        trial = worker.inflight.add([job], began)
        if job.suspect:
            _took(worker, trial)
        else:
            worker.ready.extend(worker.batches.gather(worker.lanes.admit(trial)))
