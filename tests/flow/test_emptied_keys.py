"""Which keys of an ordered queue are asked again when their jobs have ended: those that may have more."""

from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Holdfast, Rate
from holdfast.model.job import ClaimedJob
from holdfast.model.worker import WorkerIdentity
from holdfast.runtime.claim.claimer import Ask, Shared
from holdfast.runtime.claim.held import HeldJobs
from holdfast.runtime.claim.ordered import OrderedClaimer
from holdfast.store import queues
from holdfast.store.workers import register
from holdfast.tasks.task import Task
from holdfast.testing import Kit

RUN = 3


class Worker:
    """One that claims when it is told to, and whose net is never due: a job is met along the due ones, or never."""

    def __init__(self, kit: Kit, claimer: OrderedClaimer, name: str, task: Task[Any, Any]) -> None:
        self._kit, self._claimer, self._name, self._task = kit, claimer, name, task

    def put(self, key: str, count: int) -> None:
        new = [self._task.using(partition_key=key).job(key=key, n=n) for n in range(count)]
        self._kit.app.enqueue_many(new)

    async def claim(self, want: int = 10, run: int = RUN) -> list[ClaimedJob]:
        ask = Ask(self._name, want, run=run)
        jobs = await self._claimer.claim(ask)
        self._claimer.slots_of(jobs)
        return jobs

    def end(self, jobs: list[ClaimedJob], *, finished: bool = True) -> None:
        """The jobs of one key are over, in the database and here."""
        change = "DELETE FROM holdfast.work" if finished else "UPDATE holdfast.work SET status = 'pending'"
        self._kit.sql(f"{change} WHERE id = ANY (%s::uuid[])", [[job.id_text for job in jobs]])
        self._claimer.settled(jobs[-1], finished=finished)

    def take(self, keys: str) -> None:
        """Somebody else has all jobs of these keys."""
        self._kit.sql(
            "UPDATE holdfast.work SET status = 'processing' WHERE partition_key = ANY (%s)", [list(keys)]
        )

    @property
    def proposed(self) -> int:
        return len(self._claimer._found)


@pytest.fixture
def kit(app: Holdfast, holdfast_kit: Callable[..., Kit], request: pytest.FixtureRequest) -> Kit:
    app.queue("steps", ordering="key", **getattr(request, "param", {}))
    return holdfast_kit(app)


@pytest.fixture
async def worker(app: Holdfast, akit: Kit, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Worker]:
    monkeypatch.setattr("holdfast.runtime.claim.net.Net.due", lambda *_, **__: False)

    @app.task(queue="steps")
    async def step(key: str, n: int) -> None: ...

    session = akit.database.session("claim")
    rules = (await akit.database.arun(lambda: queues.queue_rules(["steps"])))["steps"]
    me = WorkerIdentity.create()
    await session.run(register(me, queues=["steps"], tasks=["step"], concurrency=10, release="-"))
    shared = Shared(session, HeldJobs(session, app.tasks), lambda _: uuid4(), 60.0)
    claimer = OrderedClaimer("steps", rules, 60.0, shared)
    yield Worker(akit, claimer, me.id, step)
    await session.close()


async def test_a_key_whose_claim_took_all_it_had_is_not_asked_again(worker: Worker) -> None:
    worker.put("a", RUN - 1)
    jobs = await worker.claim()
    worker.end(jobs)
    assert (len(jobs), worker.proposed) == (RUN - 1, 0)


async def test_one_that_had_as_many_as_were_asked_for_may_have_more(worker: Worker) -> None:
    worker.put("a", RUN + 1)
    first = await worker.claim()
    assert await worker.claim() == []  # the others are passed: they cannot be taken yet
    worker.end(first)
    assert [len(first), len(await worker.claim())] == [RUN, 1]


async def test_what_comes_while_the_last_one_runs_is_taken_after_it(worker: Worker) -> None:
    worker.put("a", 1)
    first = await worker.claim()
    worker.put("a", 1)
    assert await worker.claim() == []  # it is met and cannot be taken yet
    worker.end(first)
    assert len(await worker.claim()) == 1


async def test_what_comes_after_the_last_one_is_met_as_any_new_job(worker: Worker) -> None:
    worker.put("a", 1)
    worker.end(await worker.claim())
    worker.put("a", 1)
    assert len(await worker.claim()) == 1


async def test_a_job_that_went_back_makes_its_key_be_asked_again(worker: Worker) -> None:
    worker.put("a", 1)
    worker.end(await worker.claim(), finished=False)
    assert len(await worker.claim()) == 1


async def test_deep_keys_behind_shallow_ones_are_not_taken_all_at_once(worker: Worker) -> None:
    for key in "abcdefgh":
        worker.put(key, 1)
    for job in await worker.claim(8, 32):
        worker.end([job])
    for key in "abcdefgh":
        worker.put(key, 32)
    assert len(await worker.claim(8, 32)) == 32  # a run: it would have been 8


async def test_the_keys_that_a_claim_did_not_come_to_are_next(worker: Worker) -> None:
    for key in "abcdefgh":
        worker.put(key, 5)
    sizes = [len(await worker.claim(8, 5)) for _ in range(5)]
    assert (sizes, worker.proposed) == (
        [16, 15, 5, 0, 0],
        0,
    )  # all but what is behind the fourth key's first job


async def test_a_key_whose_run_was_cut_is_asked_again(worker: Worker) -> None:
    for key in "abcdefgh":
        worker.put(key, 5)
    cut = [job for job in await worker.claim(8, 5) if job.partition_key == "d"]
    while await worker.claim(8, 5):
        pass
    worker.end(cut)
    assert (len(cut), len(await worker.claim(8, 5))) == (1, 4)


async def test_keys_that_others_hold_are_passed_however_many_they_are(worker: Worker) -> None:
    for key in "abcdefgh":
        worker.put(key, 5)
    await worker.claim(1, 5)  # all are proposed, and the first is asked
    worker.take("bcdefg")
    assert {job.partition_key for job in await worker.claim(8, 5)} == {"h"}


@pytest.mark.parametrize("kit", [{"key_rate": Rate(1, per=3600)}], indirect=True, ids=["rate"])
async def test_keys_that_rest_for_their_rate_are_not_proposed_meanwhile(worker: Worker) -> None:
    for key in "abcdefgh":
        worker.put(key, 5)
    first = await worker.claim(8, 5)
    assert len(first) == 8  # the one of each key that its rate allows
    for job in first:
        worker.end([job])
    assert worker.proposed == 8
    assert (await worker.claim(8, 5), worker.proposed) == ([], 0)
