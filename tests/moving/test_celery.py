"""Celery tasks that run as jobs, with Celery itself and no broker."""

import datetime
from typing import Any

import pytest
from celery import Celery  # type: ignore[import-untyped]
from celery.exceptions import Ignore, Reject  # type: ignore[import-untyped]

from holdfast import ConfigurationError, Holdfast, InvalidPayload
from holdfast.contrib.celery import adopt
from holdfast.testing import Kit

# A broker that cannot be reached: whoever sends a message fails.
old = Celery("shop", broker="redis://unused.invalid:1/0")
old.conf.broker_connection_retry = False
seen: list[Any] = []


@old.task(name="shop.add")  # type: ignore[untyped-decorator]
def add(x: int, y: int = 1) -> int:
    return x + y


@old.task(name="shop.fails")  # type: ignore[untyped-decorator]
def fails() -> None:
    raise ConnectionError("no line")


@old.task(bind=True, name="shop.patient", max_retries=2, default_retry_delay=30)  # type: ignore[untyped-decorator]
def patient(self: Any, n: int) -> int:
    seen.append((self.request.retries, self.request.id, self.request.args))
    if self.request.retries < n:
        raise self.retry(exc=ConnectionError("busy"))
    return n


@old.task(
    name="shop.auto", autoretry_for=(ConnectionError,), retry_backoff=2, retry_jitter=False, max_retries=3
)  # type: ignore[untyped-decorator]
def auto() -> str:
    seen.append("tried")
    if len(seen) < 3:
        raise ConnectionError("busy")
    return "done"


@old.task(bind=True, name="shop.other", max_retries=3)  # type: ignore[untyped-decorator]
def other(self: Any, n: int) -> None:
    raise self.retry(args=[n + 1])


@old.task(name="shop.ignored")  # type: ignore[untyped-decorator]
def ignored() -> None:
    raise Ignore


@old.task(name="shop.rejected")  # type: ignore[untyped-decorator]
def rejected() -> None:
    raise Reject("not mine", requeue=False)


@old.task(bind=True, name="shop.longer", max_retries=1)  # type: ignore[untyped-decorator]
def longer(self: Any) -> None:
    seen.append(self.request.retries)
    raise self.retry(exc=ConnectionError("busy"), countdown=1, max_retries=4)


@old.task(
    name="shop.autolonger", autoretry_for=(ConnectionError,), retry_kwargs={"max_retries": 5, "countdown": 1}
)  # type: ignore[untyped-decorator]
def autolonger() -> None:
    seen.append("tried")
    raise ConnectionError("busy")


@old.task(name="shop.quiet", max_retries=2)  # type: ignore[untyped-decorator]
def quiet(fail: bool) -> str:
    """By the name of the task, which is that of the adopted one."""
    seen.append(adopted["quiet"].request.retries)
    if len(seen) < 3:
        adopted["quiet"].retry(throw=False, countdown=1)
        seen.append("went on")
        if fail:
            raise ValueError("meanwhile")
    return "done"


adopted: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


def status(kit: Kit, handle: Any) -> tuple[str, str | None]:
    row = kit.job(handle.id)
    return row["status"], row["last_error"]


def test_delay_writes_a_job_and_a_worker_runs_the_function(app: Holdfast, kit: Kit) -> None:
    moved = adopt(app, add)
    handle = moved.delay(2, y=3)
    assert kit.jobs("shop.add")[0]["payload"] == {"args": [2], "kwargs": {"y": 3}}
    kit.run_worker()
    assert handle.result(timeout=5) == 5
    assert moved(2) == 3


def test_an_error_that_the_task_does_not_retry_is_final_as_it_was(app: Holdfast, kit: Kit) -> None:
    handle = adopt(app, fails).delay()
    kit.run_worker()
    assert status(kit, handle) == ("dead_letter", "DeadLetter: ConnectionError: no line")


def test_with_options_of_holdfast_every_error_is_retried(app: Holdfast, kit: Kit) -> None:
    handle = adopt(app, fails, max_attempts=2).delay()
    kit.run_worker()
    assert status(kit, handle) == ("scheduled", "ConnectionError: no line")


def test_retry_waits_as_long_as_it_said_and_counts(app: Holdfast, kit: Kit) -> None:
    handle = adopt(app, patient).delay(2)
    kit.run_worker()
    assert status(kit, handle)[0] == "scheduled"
    kit.clock.advance(29)
    kit.run_worker()
    assert len(seen) == 1
    for _ in range(2):
        kit.clock.advance(31)
        kit.run_worker()
    assert handle.result(timeout=5) == 2
    assert seen == [(n, str(handle.id), [2]) for n in range(3)]


def test_max_retries_ends_it_with_the_error_that_was_given(app: Holdfast, kit: Kit) -> None:
    handle = adopt(app, patient).delay(9)
    for _ in range(4):
        kit.run_worker()
        kit.clock.advance(31)
    assert len(seen) == 3
    assert status(kit, handle) == ("dead_letter", "DeadLetter: ConnectionError: busy")


@pytest.mark.parametrize(
    ("task", "times", "options"),
    [(longer, 5, {}), (autolonger, 6, {}), (autolonger, 6, {"timeout": 60})],
    ids=["retry", "retry_kwargs", "timeout"],
)
def test_a_limit_of_the_execution_wins_over_that_of_the_task(
    app: Holdfast, kit: Kit, task: Any, times: int, options: Any
) -> None:
    handle = adopt(app, task, **options).delay()
    for _ in range(times + 2):
        kit.run_worker()
        kit.clock.advance(2)
    assert len(seen) == times
    assert status(kit, handle)[0] == "dead_letter"
    assert "ConnectionError: busy" in str(status(kit, handle)[1])
    assert not hasattr(task, "override_max_retries")


@pytest.mark.parametrize("fail", [False, True])
def test_a_retry_that_does_not_throw_is_another_attempt(app: Holdfast, kit: Kit, fail: bool) -> None:
    moved = adopted["quiet"] = adopt(app, quiet)
    handle = moved.delay(fail)
    for _ in range(3):
        kit.run_worker()
        kit.clock.advance(2)
    assert seen == [0, "went on", 1]
    assert handle.result(timeout=5) == "done"


def test_autoretry_backs_off_as_before(app: Holdfast, kit: Kit) -> None:
    handle = adopt(app, auto).delay()
    kit.run_worker()
    assert status(kit, handle)[0] == "scheduled"
    for _ in range(2):
        kit.clock.advance(5)
        kit.run_worker()
    assert handle.result(timeout=5) == "done"


def test_ignore_completes_and_reject_gives_up(app: Holdfast, kit: Kit) -> None:
    one, two = adopt(app, ignored).delay(), adopt(app, rejected).delay()
    kit.run_worker()
    assert status(kit, one)[0] == "completed"
    assert status(kit, two) == ("dead_letter", "DeadLetter: rejected: not mine")


def test_a_retry_with_other_arguments_is_refused_and_not_lost(app: Holdfast, kit: Kit) -> None:
    handle = adopt(app, other).delay(1)
    kit.run_worker()
    state, error = status(kit, handle)
    assert state == "dead_letter"
    assert error is not None
    assert "retry(args=, kwargs=) changes the arguments, which a job keeps" in error


def test_the_request_of_the_task_is_gone_afterwards(app: Holdfast, kit: Kit) -> None:
    """As other code in the threads of the worker sees it."""
    found: list[str | None] = []

    @app.task
    def look() -> None:
        found.append(patient.request.id)

    moved = adopt(app, patient)
    for _ in range(4):
        moved.delay(0)
        look.enqueue()
    kit.run_worker(concurrency=1)
    assert found == [None] * 4


def test_apply_async_goes_later_elsewhere_and_in_a_transaction(app: Holdfast, kit: Kit) -> None:
    moved = adopt(app, add)
    with pytest.raises(RuntimeError, match="rolled back"), kit.connect() as conn:
        moved.apply_async([1], conn=conn)
        raise RuntimeError("rolled back")
    assert kit.jobs("shop.add") == []
    later = moved.apply_async([1], {"y": 2}, countdown=60, priority=5)
    assert status(kit, later)[0] == "scheduled"
    assert kit.job(later.id)["priority"] == 5
    moved.apply_async([1], eta=datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1))
    assert len(kit.jobs("shop.add")) == 2


MISTAKES: dict[str, dict[str, Any]] = {
    "apply_async(link=) of shop.add has no meaning here. Use then= of using()": {"link": 1},
    "apply_async(shadow=) of shop.add has no meaning here. See docs/from-celery.md": {"shadow": "x"},
    "shop.add: countdown=1 and eta=2: give one of them": {"countdown": 1, "eta": 2},
}


@pytest.mark.parametrize("said", MISTAKES)
def test_what_has_no_meaning_here_says_what_to_use(said: str, app: Holdfast) -> None:
    with pytest.raises(ConfigurationError) as found:
        adopt(app, add).apply_async([1], **MISTAKES[said])
    assert str(found.value) == said


def test_signatures_are_refused_and_say_what_to_use(app: Holdfast) -> None:
    moved = adopt(app, add)
    with pytest.raises(AttributeError, match=r"shop\.add\.s\(\) has no meaning here\. Use then="):
        moved.s(1)
    assert moved.max_retries == 3


def test_only_tasks_of_celery_are_adopted_and_only_json_is_enqueued(app: Holdfast, kit: Kit) -> None:
    with pytest.raises(
        ConfigurationError, match=r"adopt\(\) takes a Celery task, not function: what @celery_app\.task"
    ):
        adopt(app, lambda: None)
    with pytest.raises(InvalidPayload, match="which is not JSON"):
        adopt(app, add).delay(object())
