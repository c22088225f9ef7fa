"""django.tasks on Holdfast: enqueue in atomic(), results by id, priority, run_after, queues, async, signals."""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import ObjectDoesNotExist
from django.db import transaction
from django.test import override_settings
from django.utils import timezone
from tests.conftest import QUICK, await_until
from tests.django_app.stock import tasks
from tests.django_app.stock.models import Part

from holdfast import ConfigurationError, DeadLetter, JobFailed
from holdfast.contrib.django import app
from holdfast.contrib.django.backend import declare_queues
from holdfast.contrib.django.flavour import PACKAGE, base, exceptions, signals, values
from holdfast.testing import Kit

Status = values.TaskResultStatus


def test_a_task_runs_and_its_result_is_found_by_its_id(stock: Kit) -> None:
    result = tasks.add.enqueue(1, b=2)
    assert (result.status, result.args, result.kwargs, result.backend) == (
        Status.READY,
        [1],
        {"b": 2},
        "default",
    )
    assert result.enqueued_at is not None
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value
    stock.run_worker()
    assert result.status == Status.READY  # until it is asked
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == (Status.SUCCESSFUL, 3, 1)
    assert result.is_finished
    assert result.started_at <= result.finished_at
    assert result.errors == []
    again = tasks.add.get_result(result.id)
    assert (again.return_value, again.task.func) == (3, tasks.add.func)
    with pytest.raises(exceptions.TaskResultMismatch):
        tasks.order.get_result(result.id)
    assert [job["task"] for job in stock.jobs()] == ["tests.django_app.stock.tasks.add"]


async def test_the_same_from_async_code_with_an_async_task(stock: Kit) -> None:
    result = await tasks.aadd.aenqueue(4, b=5)
    await stock.arun_worker()
    await result.arefresh()
    assert result.return_value == 9
    assert (await tasks.aadd.aget_result(result.id)).return_value == 9
    await stock.database.aclose()
    await sync_to_async(stock.database.close)()


@pytest.mark.parametrize("wanted", ["", "x", "00000000-0000-7000-8000-000000000000"])
def test_a_result_that_is_not_there(stock: Kit, wanted: str) -> None:
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        tasks.add.get_result(wanted)


def test_a_job_of_ours_is_no_result(stock: Kit) -> None:
    handle = tasks.receive.enqueue(name="bolt")
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        tasks.add.get_result(str(handle.id))


def test_a_task_is_enqueued_exactly_when_its_transaction_commits(stock: Kit) -> None:
    class Undone(Exception):
        pass

    with pytest.raises(Undone), transaction.atomic():
        Part.objects.create(name="never")
        lost = tasks.order.enqueue("never too")
        assert tasks.order.get_result(lost.id).status == Status.READY  # seen by its own transaction
        raise Undone
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        tasks.order.get_result(lost.id)
    with transaction.atomic():
        Part.objects.create(name="nut")
        kept = tasks.order.enqueue("bolt")
        stock.run_worker()
        assert stock.jobs() == []  # nobody else sees it before the commit
    stock.run_worker()
    assert tasks.order.get_result(kept.id).status == Status.SUCCESSFUL
    assert sorted(Part.objects.values_list("name", flat=True)) == ["bolt", "nut"]


def test_priority_queue_and_time(stock: Kit) -> None:
    low = tasks.add.using(priority=-5).enqueue(1)
    high = tasks.add.using(priority=100, queue_name="mail").enqueue(2)
    later = tasks.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(3)
    rows = {str(job["id"]): job for job in stock.jobs()}
    assert [rows[r.id]["priority"] for r in (low, high, later)] == [-5, 100, 0]
    assert [rows[r.id]["queue"] for r in (low, high, later)] == ["default", "mail", "default"]
    assert rows[later.id]["status"] == "scheduled"
    found = tasks.add.get_result(high.id)
    assert (found.task.priority, found.task.queue_name) == (100, "mail")
    stock.run_worker()
    assert [tasks.add.get_result(r.id).status for r in (low, high, later)] == [
        "SUCCESSFUL",
        "SUCCESSFUL",
        "READY",
    ]


def test_a_failed_task_says_why(stock: Kit) -> None:
    plain, own, no_json = (
        tasks.tip_over.enqueue("oh: no"),
        tasks.lose.enqueue("gone"),
        tasks.no_json.enqueue(),
    )
    stock.run_worker()
    for result in (plain, own, no_json):
        result.refresh()
        assert (result.status, result.attempts, len(result.errors)) == (Status.FAILED, 1, 1)
        with pytest.raises(ValueError, match="Task failed"):
            _ = result.return_value
    assert [r.errors[0].exception_class for r in (plain, own, no_json)] == [
        ValueError,
        ObjectDoesNotExist,
        TypeError,
    ]
    assert "oh: no" in plain.errors[0].traceback


def test_more_attempts_are_an_option_of_the_backend(stock: Kit) -> None:
    result = tasks.third_time.enqueue()
    for _ in range(3):
        stock.run_worker()
        stock.clock.advance(timedelta(hours=1))
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == (Status.SUCCESSFUL, 3, 3)
    assert [error.exception_class for error in result.errors] == [RuntimeError, RuntimeError]
    assert result.backend == "stubborn"


def test_the_context_and_the_signals(stock: Kit) -> None:
    heard: list[tuple[str, Any, Any]] = []

    def hear(name: str) -> Any:
        def receiver(sender: Any, task_result: Any, **_: Any) -> None:
            heard.append((name, task_result.id, task_result.status))

        return receiver

    receivers = [
        (getattr(signals, name), hear(name)) for name in ("task_enqueued", "task_started", "task_finished")
    ]
    for signal, receiver in receivers:
        signal.connect(receiver)
    try:
        good, bad = tasks.tell.enqueue("hi"), tasks.tip_over.using(priority=-1).enqueue("no")
        stock.run_worker(concurrency=1)
    finally:
        for signal, receiver in receivers:
            signal.disconnect(receiver)
    good.refresh()
    assert good.return_value == [1, good.id, "hi"]
    assert sorted(heard) == sorted(
        [
            ("task_enqueued", good.id, Status.READY),
            ("task_enqueued", bad.id, Status.READY),
            ("task_started", good.id, Status.RUNNING),
            ("task_finished", good.id, Status.SUCCESSFUL),
            ("task_started", bad.id, Status.RUNNING),
            ("task_finished", bad.id, Status.FAILED),
        ]
    )


@contextmanager
def finished() -> Iterator[list[tuple[str, list[type]]]]:
    """How each task was said to have ended, with the classes of its errors."""
    heard: list[tuple[str, list[type]]] = []

    def hear(sender: Any, task_result: Any, **_: Any) -> None:
        heard.append((task_result.status, [error.exception_class for error in task_result.errors]))

    signals.task_finished.connect(hear)
    try:
        yield heard
    finally:
        signals.task_finished.disconnect(hear)


def test_the_signal_of_a_failure_has_its_error(stock: Kit) -> None:
    tasks.tip_over.enqueue("no")
    given_up = tasks.give_up.using(priority=-1).enqueue("enough")
    with finished() as heard:
        stock.run_worker(concurrency=1)
    assert heard == [("FAILED", [ValueError]), ("FAILED", [DeadLetter])]
    given_up.refresh()
    assert [(e.exception_class, e.traceback) for e in given_up.errors] == [
        (DeadLetter, "DeadLetter: enough\n")
    ]


def test_a_job_that_nobody_raised_an_error_for_has_one_too(stock: Kit) -> None:
    """As one whose process died: the class of its error is ours."""
    result = tasks.tip_over.enqueue("no")
    stock.run_worker()
    stock.sql("UPDATE holdfast.errors SET kind = 'ProcessDied', message = 'signal 9', trace = ''")
    result.refresh()
    assert [(e.exception_class, e.traceback) for e in result.errors] == [
        (JobFailed, "ProcessDied: signal 9\n")
    ]


async def test_a_task_that_a_stopping_worker_gives_back_is_not_finished(
    at: str, holdfast_kit: Callable[..., Kit]
) -> None:
    kit = holdfast_kit(app, replace(QUICK, drain=0.1))
    tasks.lingering.clear()
    result = await tasks.linger.aenqueue()
    with finished() as heard:
        async with app.worker():
            await await_until(tasks.lingering.is_set, "it runs")
        assert heard == []
        await result.arefresh()
        assert (result.status, result.errors) == (Status.READY, [])
        async with app.worker():
            await await_until(lambda: kit.jobs()[0]["status"] == "processing", "it runs again")
            (row,) = kit.jobs()
            job = await app.ajob(row["id"])
            assert job is not None
            await job.acancel()
            await await_until(lambda: kit.jobs()[0]["status"] == "cancelled", "it is cancelled")
        assert [status for status, _ in heard] == [Status.FAILED]
    await sync_to_async(kit.database.close)()


def test_a_result_is_found_when_its_queue_is_no_longer_in_the_settings(stock: Kit) -> None:
    result = tasks.add.using(queue_name="mail", priority=7).enqueue(1, 2)
    stock.run_worker()
    backend = "holdfast.contrib.django.backend.HoldfastBackend"
    with override_settings(TASKS={"default": {"BACKEND": backend, "QUEUES": ["default"]}}):
        found = tasks.add.get_result(result.id)
        result.refresh()
    assert (found.return_value, found.task.queue_name, found.task.priority) == (3, "mail", 7)
    assert result.return_value == 3


def test_the_settings_of_the_page_are_a_backend(stock: Kit) -> None:
    """docs/django.md shows them."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "django.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"<!-- skip: settings -->\n```python\n(.*?)```", text, re.DOTALL)
    scope: dict[str, Any] = {}
    exec(compile(block, "django.md", "exec"), scope)
    with override_settings(TASKS=scope["TASKS"]):
        declare_queues(scope["TASKS"])
        result = tasks.add.using(queue_name="mail").enqueue(1, 2)
        stock.run_worker()
        result.refresh()
        assert (result.return_value, result.status) == (3, Status.SUCCESSFUL)
    assert [job["max_attempts"] for job in stock.jobs()] == [3]


def test_without_use_tz_its_times_have_no_zone(stock: Kit) -> None:
    with override_settings(USE_TZ=False):
        result = tasks.add.enqueue(1)
        began = result.enqueued_at
        stock.run_worker()
        result.refresh()
        assert began - timedelta(minutes=1) < result.started_at <= result.finished_at
        assert result.enqueued_at.tzinfo is None


def test_what_cannot_be_a_task_is_refused(stock: Kit) -> None:
    invalid = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError
    for options in (
        {"priority": 101},
        {"queue_name": "nowhere"},
        {"run_after": timezone.now().replace(tzinfo=None)},
    ):
        with pytest.raises(invalid):
            tasks.add.using(**options)
    with pytest.raises(TypeError):
        tasks.add.enqueue(object())
    assert stock.jobs() == []
    backend = "holdfast.contrib.django.backend.HoldfastBackend"
    with override_settings(TASKS={"default": {"BACKEND": backend, "OPTIONS": {"retries": 3}}}):
        with pytest.raises(ConfigurationError) as refused:
            tasks.add.get_backend()
        text = "TASKS['default']: unknown option 'retries' in OPTIONS (known: max_attempts)"
        assert str(refused.value) == text
    assert PACKAGE in base.__name__


@pytest.mark.parametrize("at_start", [True, False])
def test_a_queue_that_django_allows_and_we_do_not_is_refused_with_its_place(at_start: bool) -> None:
    settings = {
        "default": {"BACKEND": "holdfast.contrib.django.backend.HoldfastBackend", "QUEUES": ["High-Priority"]}
    }
    with override_settings(TASKS=settings), pytest.raises(ConfigurationError) as refused:
        declare_queues(settings) if at_start else tasks.add.get_backend()
    assert str(refused.value).startswith(
        "TASKS['default']: QUEUES has 'High-Priority'. Call it 'high_priority': queue must be a name of"
    )


def test_a_task_that_leaves_the_process_has_failed(stock: Kit) -> None:
    """As every error: sys.exit() ends a task, and no worker."""
    result = tasks.leave.enqueue("enough")
    stock.run_worker()
    result.refresh()
    assert (result.status, result.errors[0].exception_class) == (Status.FAILED, SystemExit)
    assert result.errors[0].traceback.endswith("SystemExit: enough\n")


def test_a_worker_has_no_line_for_each_task_but_at_debug(
    stock: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    for level, lines in ((logging.INFO, 0), (logging.DEBUG, 2)):
        with caplog.at_level(level):
            tasks.add.enqueue(1, 2)
            caplog.clear()
            stock.run_worker()
        assert len([r for r in caplog.records if r.name == PACKAGE]) == lines
    assert logging.getLogger(PACKAGE).level == logging.NOTSET


def test_what_django_logs_of_a_task_is_logged_here(stock: Kit, caplog: pytest.LogCaptureFixture) -> None:
    """Its receivers hear our signals: one line when it is enqueued, begins and ends, with the error at its end."""
    with caplog.at_level(logging.DEBUG, PACKAGE):
        good, bad = tasks.add.enqueue(1), tasks.tip_over.enqueue("no")
        stock.run_worker()
    said = [(r.levelname, r.getMessage(), r.exc_info) for r in caplog.records if r.name == PACKAGE]
    assert [level for level, text, _ in said if good.id in text] == ["DEBUG", "INFO", "INFO"]
    assert [level for level, text, _ in said if bad.id in text] == ["DEBUG", "INFO", "ERROR"]
    raised = [info for level, text, info in said if level == "ERROR" and bad.id in text]
    assert raised[0] is not None
    assert str(raised[0][1]) == "no"
