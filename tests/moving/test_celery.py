"""Celery tasks that run as jobs, with Celery itself and no broker."""

import datetime
from typing import Any

import pytest
from celery import Celery, Task, current_task  # type: ignore[import-untyped]
from celery.exceptions import Ignore, Reject  # type: ignore[import-untyped]

from holdfast import Backoff, ConfigurationError, Holdfast, InvalidPayload
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


class Shop(Task):  # type: ignore[misc]
    """As Flask's documentation has it, and with every handler that a task class may have."""

    context: str | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        Shop.context = "entered"
        try:
            return super().__call__(*args, **kwargs)
        finally:
            Shop.context = None

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        seen.append(("before_start", task_id, args, kwargs))

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        seen.append(("on_success", retval))
        raise RuntimeError("a handler that fails")

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        seen.append(("on_retry", repr(exc), einfo.type.__name__))

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        seen.append(("on_failure", repr(exc), "no line" in einfo.traceback))

    def after_return(self, state: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        seen.append(("after_return", state, repr(retval)))


@old.task(name="shop.inside", base=Shop, bind=True, max_retries=1)  # type: ignore[untyped-decorator]
def inside(self: Any, how: str) -> Any:
    if how == "retry":
        raise self.retry(exc=ConnectionError("no line"), countdown=1)
    if how == "fail":
        raise ConnectionError("no line")
    return [Shop.context, self.request.id, current_task.request.id, self.request.delivery_info["routing_key"]]


@old.task(name="shop.again", bind=True)  # type: ignore[untyped-decorator]
def again(self: Any, left: int) -> int:
    if left:
        self.apply_async((left - 1,), countdown=1) if left % 2 else self.delay(left=left - 1)
    return left


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
    kit.run_worker()
    assert status(kit, handle) == ("scheduled", "Retry: retry()")
    kit.clock.advance(1)
    kit.run_worker()
    assert seen == [0, "went on", 1]
    assert handle.result(timeout=5) == "done"


@pytest.mark.parametrize(
    "options", [{}, {"max_attempts": 3}, {"retry": Backoff(first=1)}], ids=["none", "max_attempts", "retry"]
)
@pytest.mark.parametrize("backend", [None, "cache+memory://"])
def test_a_result_without_a_json_form_is_no_reason_to_run_it_again(
    app: Holdfast, kit: Kit, backend: str | None, options: Any
) -> None:
    """Where Celery stores results it is a failure, as there; the same object is nothing where it stores none."""
    celery = Celery("shop", broker=old.conf.broker_url, backend=backend)
    handle = adopt(app, celery.task(name="shop.odd")(returns_object), **options).delay()
    kit.run_worker()
    assert status(kit, handle)[0] == ("completed" if backend is None else "dead_letter")
    assert seen == ["ran"]


def test_a_result_that_the_task_ignores_is_not_stored(app: Holdfast, kit: Kit) -> None:
    handle = adopt(app, old.task(name="shop.unread", ignore_result=True)(returns_object)).delay()
    kit.run_worker()
    assert handle.result(timeout=5) is None


def returns_object() -> object:
    seen.append("ran")
    return object()


def test_autoretry_backs_off_as_before(app: Holdfast, kit: Kit) -> None:
    handle = adopt(app, auto).delay()
    kit.run_worker()
    assert status(kit, handle)[0] == "scheduled"
    for _ in range(2):
        kit.clock.advance(5)
        kit.run_worker()
    assert handle.result(timeout=5) == "done"


def test_call_of_a_task_class_is_around_the_function(app: Holdfast, kit: Kit) -> None:
    handle = adopt(app, inside).delay("run")
    kit.run_worker()
    job_id = str(handle.id)
    assert handle.result(timeout=5) == ["entered", job_id, job_id, "inbox"]
    assert (inside.request.id, current_task) == (None, None)


def test_the_handlers_of_a_task_class_are_called(
    app: Holdfast, kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    moved = adopt(app, inside)
    good = moved.delay(how="run")
    kit.run_worker()
    job_id = str(good.id)
    value = good.result(timeout=5)
    assert seen == [
        ("before_start", job_id, [], {"how": "run"}),
        ("on_success", value),
        ("after_return", "SUCCESS", repr(value)),
    ]
    assert "Shop.on_success of a task class raised" in caplog.text
    seen.clear()
    moved.delay("fail")
    kit.run_worker()
    error = repr(ConnectionError("no line"))
    assert seen[1:] == [("on_failure", error, True), ("after_return", "FAILURE", error)]
    seen.clear()
    moved.delay("retry")
    for _ in range(2):
        kit.run_worker()
        kit.clock.advance(2)
    assert [one for one in seen if one[0] != "before_start"] == [
        ("on_retry", error, "Retry"),
        ("after_return", "RETRY", error),
        ("on_failure", error, True),
        ("after_return", "FAILURE", error),
    ]


def test_a_task_that_calls_itself_writes_a_job(app: Holdfast, kit: Kit) -> None:
    """The broker cannot be reached: a message would fail the job."""
    adopt(app, again).delay(2)
    for _ in range(3):
        kit.run_worker()
        kit.clock.advance(2)
    assert sorted((job["status"], job["result"]) for job in kit.jobs("shop.again")) == [
        ("completed", 0),
        ("completed", 1),
        ("completed", 2),
    ]


def test_delay_on_commit_writes_a_job_after_djangos_commit(
    app: Holdfast, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import transaction

    waiting: list[Any] = []
    monkeypatch.setattr(transaction, "on_commit", waiting.append)
    moved = adopt(app, add)
    moved.delay_on_commit(1, y=2)
    moved.apply_async_on_commit([3], priority=4)
    assert kit.jobs("shop.add") == []
    for call in waiting:
        call()
    found = [(job["payload"]["args"], job["priority"]) for job in kit.jobs("shop.add")]
    assert found == [([1], 0), ([3], 4)]


def test_an_eta_without_a_zone_is_read_as_celery_does(app: Holdfast, kit: Kit) -> None:
    wanted = datetime.datetime.now(datetime.UTC).replace(microsecond=0) + datetime.timedelta(days=1)
    local = wanted.replace(tzinfo=None) + datetime.timedelta(hours=9)
    old.conf.timezone = "Asia/Tokyo"
    del old.timezone
    try:
        handle = adopt(app, add).apply_async(None, {"x": 1}, eta=local)
    finally:
        old.conf.timezone = None
        del old.timezone
    assert kit.job(handle.id)["available_at"] == wanted


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
    assert status(kit, moved.apply_async([1], countdown=-1)) == ("pending", None)
    later = moved.apply_async([1], {"y": 2}, countdown=60, priority=5)
    assert status(kit, later)[0] == "scheduled"
    assert kit.job(later.id)["priority"] == 5
    moved.apply_async([1], eta=datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1))
    assert len(kit.jobs("shop.add")) == 3


MISTAKES: dict[str, dict[str, Any]] = {
    "apply_async(link=) of shop.add has no meaning here. Use then= of using()": {"link": 1},
    "apply_async(shadow=) of shop.add has no meaning here. See docs/from-celery.md": {"shadow": "x"},
    "apply_async(time_limit=) of shop.add has no meaning here. Use timeout= of adopt()": {"time_limit": 1},
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
