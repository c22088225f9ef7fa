"""The concurrency of an endpoint is a number over all workers, in order or not."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.conftest import QUICK, wait_until
from tests.crash.process import Scene
from tests.webhooks.support import OK, Request, Site, hooks_of
from tests.webhooks.webhooks_app import app as served

from holdfast import Endpoint, Holdfast, Rate
from holdfast.operate.operator import Operator
from holdfast.shapes.webhooks import store
from holdfast.shapes.webhooks.endpoints import Endpoints
from holdfast.shapes.webhooks.spec import Spec
from holdfast.testing import Kit

MODULE = "tests.webhooks.webhooks_app"
ACME = {"tenant": "acme"}


@pytest.fixture
def fleet(holdfast_kit: Callable[..., Kit], site: Site, tmp_path: Path) -> Iterator[tuple[Kit, Scene]]:
    """A database with the queues of webhooks and a follower that has begun; workers are processes."""
    kit = holdfast_kit(served, QUICK)
    kit.sql(
        """INSERT INTO holdfast.subscriptions (name, kind, patterns, position, seq, status, created_at, moved_at)
           VALUES ('webhooks', 'webhooks', '{order.*}', 0, 0, 'active', now(), now())"""
    )
    scene = Scene(kit, tmp_path)
    yield kit, scene
    scene.end()


def made(kit: Kit, site: Site, **options: Any) -> Endpoint:
    endpoints = Endpoints(Spec(egress=site.egress), lambda: kit.database)
    return endpoints.create(tenant="acme", url=site.url(), **options)


def senders(kit: Kit) -> set[str]:
    return {row["w"] for row in kit.sql("SELECT DISTINCT claimed_by AS w FROM holdfast.archive")}


@pytest.mark.parametrize("ordered", [False, True])
def test_an_endpoint_gets_its_number_of_requests_at_once_from_all_workers_together(
    fleet: tuple[Kit, Scene], site: Site, ordered: bool
) -> None:
    kit, scene = fleet
    made(kit, site, ordered=ordered, concurrency=3)

    async def answer(request: Request) -> bytes:
        await asyncio.sleep(0.03)  # time for a request too many
        return OK

    site.answer = answer
    for _ in range(2):
        scene.start(concurrency=8, ready=False, module=MODULE, env={"HOOKS_PORT": str(site.port)})
    sent = 0

    def both() -> bool:
        nonlocal sent
        if sent - len(site.requests) < 50:  # there is always more than one worker could begin
            for n in range(sent, sent + 50):
                served.publish("order.paid", {"n": n}, key=f"k{n % 20}", headers=ACME)
            sent += 50
        return len(senders(kit)) == 2

    wait_until(both, "both workers have sent", 40)
    wait_until(lambda: len({r.headers["webhook-id"] for r in site.requests}) == sent, "all of it", 60)
    assert site.most_at_once == 3, "it is used, and never more"


def test_the_tokens_of_an_endpoint_are_given_out_once_by_two_workers_at_once(
    fleet: tuple[Kit, Scene], site: Site
) -> None:
    kit, scene = fleet
    made(kit, site, rate=Rate(20, per="1d", burst=20))
    for _ in range(2):
        scene.start(concurrency=8, ready=False, module=MODULE, env={"HOOKS_PORT": str(site.port)})
    served.publish_many(served.events.new("order.paid", {"n": n}, headers=ACME) for n in range(60))
    held = "SELECT FROM holdfast.key_holds WHERE reason LIKE 'webhook rate%'"
    running = "SELECT FROM holdfast.work WHERE status = 'processing'"
    wait_until(lambda: kit.sql(held) and not kit.sql(running), "the tokens are used up", 40)
    assert len(site.requests) == 20
    assert len(kit.sql("SELECT FROM holdfast.webhook_deliveries WHERE status = 'delivered'")) == 20


def test_a_place_that_a_dead_worker_had_is_free_again(fleet: tuple[Kit, Scene], site: Site) -> None:
    kit, scene = fleet
    made(kit, site, ordered=True, concurrency=1)
    env = {"HOOKS_PORT": str(site.port)}
    served.publish("order.paid", {"n": 0}, key="a", headers=ACME)
    dying = scene.start(failpoints="webhooks.sent=kill", ready=False, module=MODULE, env=env)
    dying.wait()
    served.publish("order.paid", {"n": 1}, key="b", headers=ACME)
    scene.start(ready=False, module=MODULE, env=env)
    wait_until(
        lambda: len(kit.sql("SELECT 1 FROM holdfast.webhook_deliveries WHERE status = 'delivered'")) == 2,
        "both arrived",
    )


def test_a_place_counts_while_its_job_runs_under_the_claim_that_got_it(
    app: Holdfast, kit: Kit, site: Site
) -> None:
    hooks = hooks_of(app, site)
    kit.create_queues()
    kit.run_worker()
    hooks.endpoints.create(tenant="acme", url=site.url(), ordered=True, concurrency=1)
    app.publish_many(app.events.new("order.paid", {}, key=key, headers=ACME) for key in "ab")
    kit.run_projections()
    one, two = (row["id"] for row in kit.sql("SELECT id FROM holdfast.work ORDER BY seq"))

    def begin(
        *deliveries: UUID, over: list[tuple[UUID, UUID]] | None = None
    ) -> list[tuple[bool, UUID | None]]:
        found = kit.database.run(lambda: store.begin([(one, True) for one in deliveries], over or []))
        return [(found[delivery].busy, found[delivery].place) for delivery in deliveries]

    first, second = uuid4(), uuid4()
    kit.sql("UPDATE holdfast.work SET status = 'processing', claim_token = %s", [first])
    assert begin(one, two) == [(False, first), (True, None)]
    assert begin(two) == [(True, None)]
    kit.sql("UPDATE holdfast.work SET claim_token = %s WHERE id = %s", [second, one])
    assert begin(two) == [(False, first)], "its owner was given up, and somebody else has it"
    assert begin(one) == [(True, None)]
    kit.sql("UPDATE holdfast.work SET status = 'pending' WHERE id = %s", [two])
    assert begin(one) == [(False, second)], "it went back"
    assert begin(two) == [(True, None)]
    assert begin(two, over=[(one, first)]) == [(True, None)], "what ended was another attempt"
    assert begin(two, over=[(one, second)]) == [(False, first)]


def test_the_number_of_an_endpoint_is_a_rule_of_its_key(app: Holdfast, kit: Kit, site: Site) -> None:
    hooks = hooks_of(app, site)
    kit.create_queues()
    operator = Operator(kit.database, "test")

    def rules() -> list[tuple[str, int]]:
        return [(rule.key, rule.concurrency) for rule in operator.limited_keys("webhooks").keys]

    one = hooks.endpoints.create(tenant="acme", url=site.url(), concurrency=3)
    assert rules() == [(str(one.id), 3)]
    hooks.endpoints.update(one.id, tenant="acme", url=site.url("/other"))
    assert rules() == [(str(one.id), 3)]
    hooks.endpoints.update(one.id, tenant="acme", concurrency=7)
    assert rules() == [(str(one.id), 7)]
    hooks.endpoints.delete(one.id, tenant="acme")
    assert rules() == []
    hooks.endpoints.create(tenant="acme", url=site.url())
    assert [most for _, most in rules()] == [10]


def test_what_ended_makes_room_before_it_is_settled(app: Holdfast, kit: Kit, site: Site) -> None:
    """One after the other, with more slots than places: nothing waits for a quarter of a second in between."""
    hooks = hooks_of(app, site)
    kit.create_queues()
    kit.run_worker()
    hooks.endpoints.create(tenant="acme", url=site.url(), ordered=True, concurrency=1)
    app.publish_many(app.events.new("order.paid", {"n": n}, key=f"k{n}", headers=ACME) for n in range(12))
    kit.run_worker(concurrency=1)
    assert len(site.requests) == 12, "no key was held"
    assert kit.sql("SELECT FROM holdfast.key_holds") == []
