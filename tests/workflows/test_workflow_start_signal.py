"""A start and a signal in one call: both or neither, whoever else starts the run at the same time."""

import asyncio
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, InvalidOption, ResultExpired, Signal, Workflow, WorkflowType
from holdfast.testing import Kit

ADDED = Signal("added", str)


@pytest.fixture
def app() -> Holdfast:
    app = Holdfast("postgresql://unused.invalid/none")

    @app.workflow()
    async def cart(wf: Workflow, customer: int) -> list[str]:
        return [await wf.signal(ADDED), await wf.signal(ADDED)]

    app.cart = cart  # type: ignore[attr-defined]
    return app


@pytest.fixture
def cart(app: Any, kit: Kit) -> WorkflowType[[int], list[str]]:
    found: WorkflowType[[int], list[str]] = app.cart
    return found


def test_a_run_is_started_with_a_signal_and_one_that_is_there_is_sent_it(cart: Any, kit: Kit) -> None:
    first = cart.using(id="cart:7").start_with_signal(ADDED("book"), 7)
    assert first.created
    again = cart.using(id="cart:7", if_exists="restart_ended").start_with_signal(ADDED("pen"), 7)
    assert (again.created, again.run_id) == (False, first.run_id), "it has not ended"
    assert kit.workflows.run(first) == ["book", "pen"]


def test_the_same_key_twice_is_one_signal(cart: Any, kit: Kit) -> None:
    for _ in range(2):
        run = cart.using(id="cart:7", signal_key="click-1").start_with_signal(ADDED("book"), 7)
    assert run.signal(ADDED("pen"), idempotency_key="click-2")
    assert kit.workflows.run(run) == ["book", "pen"]


@pytest.mark.parametrize(
    "level", [psycopg.IsolationLevel.READ_COMMITTED, psycopg.IsolationLevel.REPEATABLE_READ]
)
def test_it_is_part_of_the_callers_transaction(cart: Any, kit: Kit, level: psycopg.IsolationLevel) -> None:
    with psycopg.connect(kit.url) as conn:
        conn.isolation_level = level
        conn.execute("SELECT 1")
        run = cart.using(id="cart:7", conn=conn).start_with_signal(ADDED("book"), 7)
        conn.rollback()
        with pytest.raises(ResultExpired, match="there is no run 'cart:7' of cart"):
            run.state()
        run = cart.using(id="cart:7", conn=conn).start_with_signal(ADDED("book"), 7)
        assert run.created
        cart.using(id="cart:7", conn=conn).start_with_signal(ADDED("pen"), 7)
    assert kit.workflows.run(run) == ["book", "pen"]


def test_a_run_that_has_ended_is_not_signalled_unless_a_new_one_is_wanted(cart: Any, kit: Kit) -> None:
    old = cart.using(id="cart:7").start(7)
    for what in ("book", "pen"):
        old.signal(ADDED(what))
    assert kit.workflows.run(old) == ["book", "pen"]
    with pytest.raises(InvalidOption, match=r"run 'cart:7' of cart has ended: the signal was not sent"):
        cart.using(id="cart:7").start_with_signal(ADDED("ink"), 7)
    with pytest.raises(InvalidOption, match="there is a run 'cart:7' of cart already"):
        cart.using(id="cart:7", if_exists="refuse").start_with_signal(ADDED("ink"), 7)
    assert kit.sql("SELECT FROM holdfast.workflow_signals") == []
    new = cart.using(id="cart:7", if_exists="restart_ended").start_with_signal(ADDED("ink"), 7)
    assert new.created
    assert new.signal(ADDED("pad"))
    assert kit.workflows.run(new) == ["ink", "pad"]


def test_what_is_wrong_with_it_is_said_before_anything_is_written(cart: Any, kit: Kit) -> None:
    with pytest.raises(TypeError, match=r"start_with_signal\(\) takes what a Signal makes, not str 'added'"):
        cart.using(id="cart:7").start_with_signal("added", 7)
    with pytest.raises(InvalidOption, match=r"signal_key is of the signal of start_with_signal\(\)"):
        cart.using(signal_key="click-1").start(7)
    with pytest.raises(InvalidOption, match="signal_key must not be empty"):
        cart.using(signal_key="")
    assert kit.sql("SELECT FROM holdfast.workflow_runs") == []


async def test_many_at_once_start_one_run_and_each_sends_its_signal(app: Any, akit: Kit) -> None:
    made = await asyncio.gather(
        *(app.cart.using(id="cart:7").astart_with_signal(ADDED(word), 7) for word in ("book", "pen"))
    )
    assert sorted(run.created for run in made) == [False, True]
    assert sorted(await akit.workflows.arun(made[0])) == ["book", "pen"]
