"""A handler that wants nothing around it is awaited in the task of its job: it ends as in the general way."""

import asyncio
from dataclasses import replace
from typing import Any, cast
from uuid import uuid4

import pytest

from holdfast import Cancel, DeadLetter, Holdfast, Retry, Snooze, telemetry
from holdfast.db.database import Database
from holdfast.model.job import ClaimedJob
from holdfast.model.outcome import ErrorText, Failed, Outcome
from holdfast.runtime.attempts import Attempts
from holdfast.runtime.execute import Executor
from holdfast.runtime.inflight import Running
from holdfast.runtime.job import Job
from holdfast.runtime.middleware import Middleware, Next

WAYS = {
    "nothing": None,
    "value": {"a": [1]},
    "no JSON": object(),
    "error": ValueError("x"),
    "retry": Retry("later", after=5),
    "snooze": Snooze(7),
    "snooze of nothing": Snooze("soon"),
    "dead": DeadLetter("never"),
    "cancel": Cancel("no"),
    "group": BaseExceptionGroup("one", [Snooze(9)]),
    "exit": SystemExit(3),
    "cancelled": asyncio.CancelledError(),
}


class Ending(Attempts):
    """Attempts without a database: an outcome is kept instead of settled."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._heard = False
        self._slots = self.dispatcher = cast("Any", self)
        self.outcomes: list[Outcome] = []
        self.free = self.went_on = 0

    def finished(self, began: float) -> None:
        self.free += 1

    def go_on(self) -> None:
        self.went_on += 1

    def conclude(self, running: Running, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


def a_job(task: str, payload: str = "{}") -> Running:
    claimed = ClaimedJob(
        str(uuid4()), 1, 1, task, 1, payload, None, 0, 0, 5, 0.0, False, 0, None, "inbox", str(uuid4()), 0.0, 1, 1
    )  # fmt: skip
    return Running(claimed, 0.0, 0.0)


def an_executor(app: Holdfast, *middleware: Middleware) -> Executor:
    return Executor(cast("Database", None), app.tasks, lambda: "w-1", middleware)


def same(outcome: Outcome) -> Outcome:
    """Without what differs from call to call: the frames of a trace, and the jitter of a pause."""
    if isinstance(outcome, Failed):
        error = ErrorText(outcome.error.kind, outcome.error.message)
        return replace(outcome, error=error, delay=0.0 if outcome.error.kind != "Retry" else outcome.delay)
    return outcome


@pytest.fixture
def app() -> Holdfast:
    return Holdfast()


@pytest.mark.parametrize("says", [None, int, Any])
@pytest.mark.parametrize("way", WAYS)
async def test_a_bare_call_ends_as_the_general_way_does(app: Holdfast, way: str, says: Any) -> None:
    async def handler() -> Any:
        end = WAYS[way]
        if isinstance(end, BaseException):
            raise end
        return end

    handler.__annotations__["return"] = says
    app.task(name="t")(handler)
    executor = an_executor(app)
    bare = Ending(executor)
    await bare.run(a_job("t"))
    (outcome,) = bare.outcomes
    assert same(outcome) == same(await executor.execute(a_job("t")))
    assert (bare.free, bare.went_on) == (1, 1)


@pytest.mark.parametrize("payload", ["[]", "{", '{"m": 1}', '{"n": "x"}', '{"n": 1.5}', "{}"])
async def test_a_payload_that_does_not_fit_ends_as_in_the_general_way(app: Holdfast, payload: str) -> None:
    @app.task(name="t")
    async def handler(n: int) -> None: ...

    executor = an_executor(app)
    bare = Ending(executor)
    await bare.run(a_job("t", payload))
    assert bare.outcomes == [await executor.execute(a_job("t", payload))]


async def test_a_bare_call_has_the_fields_of_its_job_in_its_context(app: Holdfast) -> None:
    seen: list[dict[str, Any]] = []

    @app.task(name="t")
    async def handler() -> None:
        seen.append(dict(telemetry.job_context.get()))

    job = a_job("t")
    await asyncio.create_task(Ending(an_executor(app)).run(job))
    assert seen == [
        {"job": job.claimed.id_text, "task": "t", "queue": "inbox", "attempt": 1, "worker": "w-1"}
    ]
    assert dict(telemetry.job_context.get()) == {}


async def test_middleware_that_has_something_to_do_is_around_every_call(app: Holdfast) -> None:
    order: list[str] = []

    async def around(job: Job, call_next: Next) -> Outcome:
        order.append("before")
        outcome = await call_next()
        order.append("after")
        return outcome

    @app.task(name="t")
    async def handler() -> None:
        order.append("call")

    await Ending(an_executor(app, around)).run(a_job("t"))
    assert order == ["before", "call", "after"]
