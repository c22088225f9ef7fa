"""Where a new subscription begins: now, at the start, after a position, at a time."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.conftest import QUICK

from holdfast import AsyncTransaction, Event, Holdfast, TaskDefinitionError
from holdfast.testing import Kit

Make = Callable[..., Kit]


def consumer(seen: list[int], start: Any) -> Holdfast:
    app = Holdfast("postgresql://unused.invalid/none")

    @app.on("*", start=start)
    async def consume(event: Event[Any]) -> None:
        seen.append(event.position)

    return app


def publish(kit: Kit, count: int) -> None:
    for number in range(count):
        kit.app.publish("thing.done", {"number": number})


@pytest.mark.parametrize(
    ("start", "gets"),
    [("now", [6]), ("start", [1, 2, 3, 4, 5, 6]), (3, [4, 5, 6]), (5, [6]), (0, [1, 2, 3, 4, 5, 6])],
)
def test_a_new_consumer_begins_where_it_says(holdfast_kit: Make, start: Any, gets: list[int]) -> None:
    seen: list[int] = []
    kit = holdfast_kit(consumer(seen, start), QUICK)
    publish(kit, 5)
    kit.run_worker()
    publish(kit, 1)
    kit.run_worker()
    assert sorted(seen) == gets
    kit.run_worker()
    assert sorted(seen) == gets, "only a new one begins there; later it goes on where it is"


def test_a_new_consumer_begins_at_a_time(holdfast_kit: Make) -> None:
    seen: list[int] = []
    pages = Holdfast("postgresql://unused.invalid/none")
    kit = holdfast_kit(pages, QUICK)
    publish(kit, 2)
    pages.events.last_position()  # they are numbered
    between = kit.sql("SELECT clock_timestamp() AS at")[0]["at"]
    publish(kit, 3)
    pages.events.last_position()
    kit = holdfast_kit(consumer(seen, between), QUICK)
    kit.run_worker()
    assert sorted(seen) == [3, 4, 5]


@pytest.mark.parametrize(("at", "gets"), [(timedelta(days=-300), [1, 2]), (timedelta(days=300), [])])
def test_a_time_before_or_after_the_log_is_its_start_or_its_end(
    holdfast_kit: Make, at: timedelta, gets: list[int]
) -> None:
    seen: list[int] = []
    kit = holdfast_kit(consumer(seen, datetime.now(UTC) + at), QUICK)
    publish(kit, 2)
    kit.app.events.last_position()
    kit.run_worker()
    assert sorted(seen) == gets


def test_a_projection_begins_where_it_says(app: Holdfast, kit: Kit) -> None:
    @app.projection("late", on=["*"], start=2)
    async def late(tx: AsyncTransaction, event: Event[Any]) -> None:
        await tx.execute("INSERT INTO seen VALUES (%s)", [event.position])

    kit.sql("CREATE TABLE seen (position bigint)")
    publish(kit, 3)
    kit.run_worker()
    assert kit.sql("SELECT position FROM seen") == [{"position": 3}]


def test_now_has_all_that_commits_after_the_subscription_is_known(holdfast_kit: Make) -> None:
    """Also what was published before it and is committed after it. What was committed before it is not delivered."""
    seen: list[int] = []
    kit = holdfast_kit(consumer(seen, "now"), QUICK)
    with kit.connect() as early, kit.connect() as late:
        kit.app.publish("thing.done", {"who": "committed before"}, conn=early)
        kit.app.publish("thing.done", {"who": "open"}, key="k", conn=late)
        early.commit()
        kit.run_worker()  # makes the subscription
        assert seen == []
        late.commit()
    kit.run_worker()
    assert [event.data["who"] for event in kit.app.events.read(0) if event.position in seen] == ["open"]


def test_a_start_that_the_log_has_left_behind_is_expired_with_the_number_missed(holdfast_kit: Make) -> None:
    seen: list[int] = []
    kit = holdfast_kit(consumer(seen, 1), QUICK)
    publish(kit, 4)
    kit.app.events.last_position()
    kit.sql("UPDATE holdfast.event_log SET start_pos = 3")
    kit.run_worker()
    assert kit.sql("SELECT status, position, missed, problem FROM holdfast.subscriptions") == [
        {
            "status": "expired",
            "position": 1,
            "missed": 2,
            "problem": "start=1: the log begins after position 3",
        }
    ]
    assert seen == []


def test_a_start_beyond_the_log_is_paused_and_says_why(holdfast_kit: Make) -> None:
    seen: list[int] = []
    kit = holdfast_kit(consumer(seen, 7), QUICK)
    publish(kit, 2)
    kit.run_worker()
    assert kit.sql("SELECT status, position, paused_by, problem FROM holdfast.subscriptions") == [
        {
            "status": "paused",
            "position": 2,
            "paused_by": "start",
            "problem": "start=7: the last position of the log is 2",
        }
    ]


@pytest.mark.parametrize(
    ("start", "shown"),
    [
        ("end", "str 'end'"),
        (-1, "int -1"),
        (True, "bool True"),
        (1.5, "float 1.5"),
        (datetime(2026, 1, 1), "datetime datetime.datetime(2026, 1, 1, 0, 0)"),  # noqa: DTZ001 that is what is wrong with it
    ],
)
def test_a_start_that_is_none_is_refused(app: Holdfast, start: Any, shown: str) -> None:
    said = f'start must be "now", "start", a position or a time with its zone, not {shown}'
    with pytest.raises(TaskDefinitionError) as error:
        app.on("*", start=start)
    assert str(error.value) == said
    with pytest.raises(TaskDefinitionError) as error:

        @app.projection("p", on=["*"], start=start)
        async def project(tx: AsyncTransaction, event: Event[Any]) -> None: ...

    assert str(error.value) == said


def test_one_that_was_removed_while_its_code_runs_is_made_again(
    holdfast_kit: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.shapes.events.service._AGAIN", 0.0)
    seen: list[int] = []
    kit = holdfast_kit(consumer(seen, "start"), QUICK)
    kit.run_worker()
    kit.sql("DELETE FROM holdfast.subscriptions")
    publish(kit, 1)
    kit.run_worker()
    assert seen == [1]
