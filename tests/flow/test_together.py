"""Parts that meet: chains, groups, schedules and replaced jobs in queues that are claimed key by key."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from holdfast import DeadLetter, Holdfast, InvalidOption, TaskDefinitionError
from holdfast.operate.dead import redrive_verb
from holdfast.operate.job_acts import RETRY
from holdfast.operate.operator import Operator
from holdfast.testing import Kit

Make = Callable[..., Kit]


class Shop:
    """Ordered queues of both kinds that wait, a task that fails for good while the service is down, and one that follows."""

    def __init__(self, app: Holdfast, make: Make) -> None:
        app.queue("blocking", ordering="key", on_dead_letter="block")
        app.queue("parking", ordering="key", on_dead_letter="park")
        self.app, self.down = app, True
        self.ran: list[Any] = []

        @app.task(queue="blocking", max_attempts=1)
        def flaky(n: int) -> None:
            if self.down:
                raise DeadLetter("the service is down")
            self.ran.append(n)

        @app.task
        def after(name: str) -> None:
            self.ran.append(name)

        self.flaky, self.after = flaky, after
        self.kit: Kit = make(app)

    def statuses(self, job_id: UUID) -> str:
        return str(self.kit.job(job_id)["status"])


@pytest.fixture
def shop(app: Holdfast, holdfast_kit: Make) -> Shop:
    return Shop(app, holdfast_kit)


def test_a_blocked_job_that_is_skipped_and_redriven_keeps_what_follows_it(shop: Shop) -> None:
    job = shop.flaky.using(partition_key="k", then=shop.after.job(name="chain")).enqueue(n=1)
    shop.kit.run_worker()
    assert shop.statuses(job.id) == "blocked"
    Operator(shop.kit.database, "ann").release_keys("blocking", ["k"], "skip")
    assert shop.statuses(job.id) == "dead_letter"
    shop.down = False
    Operator(shop.kit.database, "ann").act_on(redrive_verb(), [job.id])
    shop.kit.run_worker()
    assert shop.ran == [1, "chain"]


def test_a_blocked_member_that_is_skipped_counts_in_its_group(shop: Shop) -> None:
    member = shop.flaky.using(partition_key="k").job(n=1)
    shop.app.group([member], then=shop.after.job(name="group"), when="finished")
    shop.kit.run_worker()
    assert shop.ran == []
    Operator(shop.kit.database, "ann").release_keys("blocking", ["k"], "skip")
    shop.kit.run_worker()
    assert shop.ran == ["group"]


def test_a_member_that_parks_its_key_counts_in_its_group(shop: Shop) -> None:
    member = shop.flaky.using(queue="parking", partition_key="k").job(n=1)
    shop.app.group([member], then=shop.after.job(name="group"), when="finished")
    shop.kit.run_worker()
    assert shop.ran == ["group"]
    shop.down = False
    Operator(shop.kit.database, "ann").release_keys("parking", ["k"], "retry")
    shop.kit.run_worker()
    assert shop.ran == ["group", 1]


def test_a_replace_key_does_not_overwrite_the_job_that_blocks_its_key(shop: Shop) -> None:
    enqueue = shop.flaky.using(partition_key="k", replace_key="r").enqueue
    first = enqueue(n=1)
    shop.kit.run_worker()
    second = enqueue(n=2)
    assert second.created
    assert shop.statuses(first.id) == "blocked"
    assert shop.kit.job(first.id)["payload"] == {"n": 1}
    shop.down = False
    Operator(shop.kit.database, "ann").act_on(RETRY, [first.id])
    shop.kit.run_worker()
    assert shop.ran == [1, 2]


def test_a_follow_up_without_a_key_is_refused_before_anything_is_written(shop: Shop) -> None:
    text = "a queue of what follows is claimed key by key, and a job that is to follow this one of after has no key"
    with shop.kit.connect() as conn:
        with pytest.raises(InvalidOption, match=text):
            shop.after.using(conn=conn, then=shop.flaky.job(n=1)).enqueue(name="x")
        assert conn.execute("SELECT 1 AS one").fetchone() == {"one": 1}  # the transaction is usable
    with pytest.raises(InvalidOption, match="queue 'blocking' is claimed key by key"):
        shop.app.group([shop.after.job(name="y")], then=shop.flaky.job(n=7))
    assert shop.kit.jobs() == []
    for spec, error in (
        ('{"task": "flaky", "queue": "blocking"}', "no partition_key"),
        ('{"task": "flaky", "queue": "nowhere"}', "does not exist"),
        ('{"task": "after", "prioriy": 5}', "after has no option 'prioriy'"),
    ):
        with pytest.raises(psycopg.Error, match=error):
            shop.kit.sql("SELECT holdfast.enqueue('after', follow_ups => %s::jsonb)", [f"[{spec}]"])


def test_a_schedule_without_a_key_is_refused(shop: Shop) -> None:
    with pytest.raises(InvalidOption, match="queue 'blocking' is claimed key by key"):
        shop.app.schedules.add("nightly", timedelta(hours=1), shop.flaky.job(n=1))
    shop.app.schedule("0 3 * * *", shop.flaky.job(n=1))
    with pytest.raises(
        TaskDefinitionError, match=r"schedule 'flaky': queue 'blocking' is claimed key by key"
    ):
        shop.kit.run_worker()


def test_enqueues_of_other_keys_do_not_wait_for_one_that_wakes_somebody(shop: Shop) -> None:
    shop.kit.sql("INSERT INTO holdfast.sleepers VALUES ('blocking', 'somebody', 60)")
    with shop.kit.connect() as first, shop.kit.connect() as second:
        second.execute("SET lock_timeout = '2s'")
        shop.flaky.using(conn=first, partition_key="a").enqueue(n=1)
        shop.flaky.using(conn=second, partition_key="b").enqueue(n=2)
        second.commit()
        first.commit()
    assert len(shop.kit.jobs()) == 2


def test_a_queue_that_is_declared_with_rules_is_made_by_sync(app: Holdfast, kit: Kit, tmp_path: Path) -> None:
    app.queue("later", ordering="key")

    @app.task(queue="later")
    def work() -> None: ...

    with pytest.raises(
        Exception, match="Create it with the rules that the app declares: holdfast queue sync"
    ):
        work.using(partition_key="k").enqueue()
