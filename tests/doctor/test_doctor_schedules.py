"""Schedules that nobody fires: made so, found, mended by the printed command, and gone."""

import asyncio
from datetime import timedelta

import pytest
from tests.conftest import wait_until
from tests.doctor.case import Case

from holdfast import Holdfast


@pytest.fixture
def app(case: Case) -> Holdfast:
    return Holdfast(case.url)


def make_late(case: Case, name: str, more: str = "") -> None:
    case.sql(
        "UPDATE holdfast.schedules SET decided_to = now() - interval '3 hours', next_at = now() - interval '2 hours'"
        f"{more} WHERE name = %s",
        [name],
    )


def add(app: Holdfast, name: str, queue: str = "inbox") -> None:
    @app.task(name="greet", queue=queue)
    def greet(name: str) -> str:
        return name

    with app:
        app.schedules.add(name, timedelta(hours=1), greet.job(name="x"), missed="run_all")


def test_a_schedule_without_a_worker_is_overdue(case: Case, app: Holdfast) -> None:
    add(app, "hello")
    assert case.found("overdue_schedule") is None
    make_late(case, "hello")
    finding = case.cure("overdue_schedule", "-a", "doctor_app:app")
    assert finding["level"] == "error"
    assert finding["what"] == "1 schedule overdue: no worker has fired a slot that is past"
    assert finding["fix"] == ["holdfast worker doctor_app:app --queue inbox"]
    assert finding["details"] == ["hello (of operator, queue inbox), overdue for 2 h"]
    assert finding["otherwise"] == ["holdfast schedule pause hello"]
    assert len(case.sql("SELECT slot FROM holdfast.firings")) >= 2


def test_a_paused_schedule_is_not(case: Case, app: Holdfast) -> None:
    add(app, "hello")
    make_late(case, "hello", ", paused_at = now()")
    assert case.found("overdue_schedule") is None


def test_a_schedule_whose_queue_is_missing_says_so(case: Case, app: Holdfast) -> None:
    add(app, "hello")
    make_late(case, "hello", ", queue = 'gone'")
    case.start("doctor_app:app")
    wait_until(lambda: case.sql("SELECT name FROM holdfast.schedules WHERE problem IS NOT NULL"), "it failed")
    finding = case.cure("overdue_schedule")
    assert finding["fix"] == ["holdfast queue create gone"]
    assert finding["details"] == [
        (
            "hello (of operator, queue gone), overdue for 2 h: schedule 'hello': queue 'gone' does not exist. "
            "Create it: holdfast queue create gone"
        )
    ]


def test_a_schedule_that_no_living_code_has_can_be_removed(case: Case, app: Holdfast) -> None:
    add(app, "hello")
    make_late(case, "hello", ", origin = 'code', declared_at = now() - interval '1 hour'")
    worker = case.start("doctor_app:app")
    assert worker.poll() is None
    wait_until(
        lambda: case.sql("SELECT id FROM holdfast.workers WHERE status = 'alive'"), "a worker is there"
    )
    assert case.found("overdue_schedule") is None
    finding = case.cure("undeclared_schedule", "-a", "doctor_app:app")
    assert finding["level"] == "warning"
    assert finding["what"] == "1 schedule in no live worker's code: nobody fires it"
    assert finding["fix"] == ["holdfast schedule remove hello"]
    assert finding["otherwise"] == ["holdfast worker doctor_app:app --queue inbox"]


def test_a_schedule_that_fires_and_whose_job_fails_for_good_is_found(case: Case, app: Holdfast) -> None:
    @app.task(name="greet", max_attempts=1)
    def greet(name: str) -> str:
        raise ValueError(f"nobody is called {name}")

    with app:
        app.schedules.add("hello", timedelta(days=1), greet.job(name="x"))
        assert case.found("failed_schedule") is None
        case.run("holdfast schedule run hello")
        asyncio.run(app.run_worker(until_idle=True))
    (job,) = [row["id"] for row in case.sql("SELECT id FROM holdfast.dead_letters")]
    finding = case.cure("failed_schedule")
    assert finding["level"] == "warning"
    assert finding["what"] == "1 schedule whose last job is a dead letter"
    assert finding["fix"] == [f"holdfast dead redrive {job}"]
    assert finding["details"][0].startswith(f"hello: job {job} of greet, ")
    assert finding["details"][0].endswith(" ago, with ValueError: nobody is called x")
