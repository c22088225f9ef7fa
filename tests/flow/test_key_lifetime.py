"""How long an idempotency key lives: seven days, as long as asked for, or for ever."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast, ResultExpired
from holdfast.operate.job_acts import DISCARD
from holdfast.operate.operator import Operator
from holdfast.runtime.sweep import Sweeper
from holdfast.testing import Kit

pytestmark = pytest.mark.versions

DAY = 86_400


def tidy(kit: Kit) -> None:
    async def main() -> None:
        sweeper = Sweeper(kit.database, lambda: None)
        await sweeper.tidier.tidy_once(7, 60.0)
        await sweeper.stop()

    asyncio.run(main())


@pytest.fixture
def send(app: Holdfast, kit: Kit) -> Any:
    @app.task
    def send(n: int) -> int:
        return n

    return send


def test_a_key_lives_for_seven_days_unless_said_otherwise(send: Any, kit: Kit) -> None:
    first = send.using(idempotency_key="k").enqueue(1)
    kit.clock.advance(7 * DAY - 600)
    tidy(kit)
    again = send.using(idempotency_key="k").enqueue(1)
    assert (again.id, again.created) == (first.id, False)
    kit.clock.advance(1200)
    assert send.using(idempotency_key="k").enqueue(1).created


@pytest.mark.parametrize("lifetime", ["forever", timedelta(days=200 * 365), 365 * DAY])
def test_a_key_lives_as_long_as_asked_for(send: Any, kit: Kit, lifetime: Any) -> None:
    keyed = send.using(idempotency_key="k", idempotency_lifetime=lifetime)
    first = keyed.enqueue(1)
    kit.run_worker()
    assert first.result(timeout=10) == 1
    tidy(kit)
    kit.clock.advance(360 * DAY)
    tidy(kit)
    again = keyed.enqueue(1)
    assert (again.id, again.created) == (first.id, False)
    with pytest.raises(ResultExpired):  # the key outlives the result
        again.result(timeout=10)
    kit.clock.advance(10 * DAY)
    assert keyed.enqueue(1).created is (lifetime == 365 * DAY)


def test_a_key_of_a_follow_up_may_live_for_ever(app: Holdfast, send: Any, kit: Kit) -> None:
    keyed = send.using(idempotency_key="k", idempotency_lifetime="forever")
    send.using(then=[keyed.job(2)]).enqueue(1)
    kit.run_worker()
    assert kit.sql("SELECT expires_at = 'infinity' AS endless FROM holdfast.idempotency") == [
        {"endless": True}
    ]
    kit.clock.advance(100 * DAY)
    tidy(kit)
    assert not keyed.enqueue(2).created


def test_a_key_from_sql_lives_for_seven_days_or_for_ever(send: Any, kit: Kit) -> None:
    kit.sql("SELECT holdfast.enqueue('send', '{\"n\": 1}', idempotency_key => 'week')")
    kit.sql(
        "SELECT holdfast.enqueue('send', '{\"n\": 1}', idempotency_key => 'endless', "
        "idempotency_lifetime => '1000 years')"
    )
    rows = kit.sql(
        "SELECT key, expires_at = 'infinity' AS endless, "
        "expires_at BETWEEN holdfast.now() + interval '6 days' AND holdfast.now() + interval '7 days' AS week "
        "FROM holdfast.idempotency"
    )
    assert sorted((row["key"], row["endless"], row["week"]) for row in rows) == [
        ("endless", True, False),
        ("week", False, True),
    ]


def test_the_endless_key_of_a_job_that_is_discarded_is_free_again(send: Any, kit: Kit) -> None:
    keyed = send.using(idempotency_key="k", idempotency_lifetime="forever")
    first = keyed.enqueue(1)
    Operator(kit.database, "ann").act_on(DISCARD, [first.id])
    assert keyed.enqueue(1).created
