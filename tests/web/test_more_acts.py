"""Acts on queues, keys, schedules, subscriptions, projections, secrets and runs. Each is shown first and sealed, is done by
the verb of its shape, and is in the audit."""

import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.conftest import QUICK, await_until
from tests.web.surfing import Surfer, fields, made_for
from tests.web.test_access import TOKEN
from tests.web.troubled import OrderPaid, checkout, make_trouble, shop_app

from holdfast.testing import Kit
from holdfast.web import BearerTokens, Identity, hashed, holdfast_web
from holdfast.web.application import Dashboard


class Shop:
    """A shop of every shape, and an admin who looks at it."""

    def __init__(self, kit: Kit, made: Dashboard) -> None:
        self.kit = kit
        self.made = made
        self.surfer = Surfer(made)

    def path(self, act: str, **given: str) -> str:
        return f"/acts/{act}?{urlencode(given)}"

    async def done(self, act: str, **given: str) -> str:
        """Open its preview and confirm what it shows; returns what the preview says."""
        typed = {name: given.pop(name) for name in ("payload",) if name in given}
        if typed:
            text = await self.surfer.look(self.path(act), **given, **typed)
        else:
            text = await self.surfer.page(self.path(act, **given))
        form = fields(text)
        assert form.get("seal"), text[text.index('class="confirm-form"') - 1500 :]
        number = re.search(r"[Tt]ype <b>([\d,]+)</b>", text)
        answer = await self.surfer.post(
            f"/acts/{act}", {**given, **form, **({"typed": number[1]} if number else {})}
        )
        assert answer.status_code in (200, 303), answer.text[-1500:]
        return text + (answer.text if answer.status_code == 200 else "")

    def audited(self) -> tuple[str, str, str]:
        row = self.kit.sql("SELECT actor, surface, action FROM holdfast.audit ORDER BY id DESC LIMIT 1")[0]
        return row["actor"], row["surface"], row["action"]


@pytest.fixture
async def shop(holdfast_kit: Any) -> AsyncIterator[Shop]:
    kit: Kit = holdfast_kit(shop_app(), QUICK)
    made = made_for(kit.app)
    yield Shop(kit, made)
    await made.site.close()
    await kit.database.aclose()


@pytest.fixture
def troubled(holdfast_kit: Any) -> Kit:
    kit: Kit = holdfast_kit(shop_app(), QUICK)
    make_trouble(kit)
    return kit


@pytest.fixture
async def full(troubled: Kit) -> AsyncIterator[Shop]:
    made = made_for(troubled.app)
    yield Shop(troubled, made)
    await made.site.close()
    await troubled.database.aclose()


# Queues and keys -----------------------------------------------------------------------------------------------------


async def test_a_queue_is_made_as_it_was_shown(shop: Shop) -> None:
    asks = await shop.surfer.page("/acts/queue-create")
    assert 'name="ordering"' in asks
    assert "seal" not in fields(asks)
    text = await shop.done(
        "queue-create", queue="night", ordering="key", on_dead_letter="park", concurrency="5"
    )
    assert "Queue night would be made, ordering key; on_dead_letter park; concurrency 5." in text
    assert "holdfast queue create night --ordering key --on-dead-letter park --concurrency 5" in text
    (row,) = shop.kit.sql(
        "SELECT ordering, on_dead_letter, concurrency FROM holdfast.queues WHERE name = 'night'"
    )
    assert tuple(row.values()) == ("key", "park", 5)
    assert shop.audited() == ("mara", "web", "queue create")
    assert "exists already" in await shop.surfer.page(shop.path("queue-create", queue="night"))
    sealed = fields(await shop.surfer.page(shop.path("queue-create", queue="other")))
    changed = await shop.surfer.post("/acts/queue-create", {**sealed, "ordering": "key"})
    assert changed.status_code == 409
    for wrong, said in (({"queue": "Night"}, "Night"), ({"queue": "n", "rate": "fast"}, "fast")):
        assert said in await shop.surfer.page(shop.path("queue-create", **wrong))


async def test_a_key_is_held_and_lifted(shop: Shop) -> None:
    given = {"queue": "parcels", "key": "order:7"}
    text = await shop.done("keys-hold", **given, span="10m", reason="the carrier is away", trial="yes")
    assert "Nothing of key order:7 of queue parcels would be claimed for 10m." in text
    (row,) = shop.kit.sql("SELECT reason, trial FROM holdfast.key_holds")
    assert tuple(row.values()) == ("the carrier is away", True)
    assert shop.audited() == ("mara", "web", "keys hold")
    again = await shop.surfer.page(shop.path("keys-hold", **given))
    assert "It is held already" in again
    assert "a trial needs an end" in await shop.surfer.page(shop.path("keys-hold", **given, trial="yes"))
    csrf = again.split('name="csrf" value="')[1].split('"')[0]
    assert (await shop.surfer.post("/acts/keys-lift", {**given, "csrf": csrf})).status_code == 303
    assert shop.kit.sql("SELECT FROM holdfast.key_holds") == []


async def test_all_keys_and_one_key_are_not_meant_at_once(shop: Shop) -> None:
    text = await shop.surfer.page(shop.path("keys-release", queue="parcels", key="a", all="1"))
    assert "say key or all, not both" in text
    assert "say which key, or all" in await shop.surfer.page(shop.path("keys-release", queue="parcels"))


# Schedules -----------------------------------------------------------------------------------------------------------


async def test_a_schedule_is_added_and_removed(shop: Shop) -> None:
    given = {"name": "hourly", "task": "search.reindex", "every": "1h", "payload": '{"product": 7}'}
    text = await shop.done("schedule-add", **given)
    assert "Schedule hourly would enqueue search.reindex in queue inbox: Every " in text
    (row,) = shop.kit.sql("SELECT origin, payload FROM holdfast.schedules WHERE name = 'hourly'")
    assert tuple(row.values()) == ("operator", {"product": 7})
    assert shop.audited() == ("mara", "web", "schedule add")
    assert "Remove" in await shop.surfer.page("/schedules/hourly")
    assert "would be removed" in await shop.done("schedule-remove", name="hourly")
    assert shop.kit.sql("SELECT FROM holdfast.schedules WHERE name = 'hourly'") == []
    assert shop.audited() == ("mara", "web", "schedule remove")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"every": "soon"}, "every must be a span"),
        ({"every": "1h", "cron": "@daily"}, "one of the two"),
        ({}, "one of the two"),
        ({"every": "1h", "payload": "["}, "the payload is not JSON"),
        ({"every": "1h", "payload": "[]"}, "must be a JSON object"),
        ({"every": "1h", "payload": '{"nothing": 1}'}, "nothing"),
        ({"every": "1h", "task": "no.such"}, "no.such"),
        ({"cron": "61 * * * *"}, "61"),
    ],
)
async def test_a_schedule_that_cannot_be_is_not_added(shop: Shop, wrong: dict[str, str], said: str) -> None:
    given = {"name": "x", "task": "search.reindex", "payload": '{"product": 1}', **wrong}
    text = await shop.surfer.look("/acts/schedule-add", **given)
    assert said in text
    assert "seal" not in fields(text)


async def test_the_page_of_a_schedule_shows_its_last_slots(shop: Shop) -> None:
    await shop.done(
        "schedule-add", name="hourly", task="search.reindex", every="1h", payload='{"product": 7}'
    )
    assert "It has not fired yet." in await shop.surfer.page("/schedules/hourly")
    text = await shop.done(
        "schedule-backfill", name="hourly", start="2026-05-01T00:00+00:00", end="2026-05-01T02:00+00:00"
    )
    assert "2 jobs would be enqueued" in text
    page = await shop.surfer.page("/schedules/hourly")
    jobs = shop.kit.sql("SELECT job_id FROM holdfast.firings ORDER BY slot DESC")
    assert page.count("backfilled") == len(jobs) == 2
    assert page.index(str(jobs[0]["job_id"])) < page.index(str(jobs[1]["job_id"])), "the newest first"


# Workers -------------------------------------------------------------------------------------------------------------


WORKER = """
INSERT INTO holdfast.workers (id, host, pid, status, last_seen_at, started_at, queues, tasks, concurrency, release)
SELECT u.host || ':' || u.pid || ':x', u.host, u.pid, 'alive', holdfast.now(), holdfast.now(), '{inbox}', '{}', 1, ''
FROM (VALUES ('web-1', 1), ('web-1', 2), ('web-2', 3)) AS u(host, pid)
"""


async def test_the_workers_of_one_host_are_drained(shop: Shop) -> None:
    shop.kit.sql(WORKER)
    page = await shop.surfer.page("/workers")
    assert "Drain web-1…" in page
    assert "Drain web-2…" not in page, "one worker has a button of its own"
    text = await shop.done("workers-drain", host="web-1")
    assert "2 workers would finish or hand back what they run" in text
    assert "holdfast workers drain --host web-1 --yes" in text
    states = shop.kit.sql("SELECT host, status FROM holdfast.workers ORDER BY pid")
    assert [tuple(one.values()) for one in states] == [
        ("web-1", "draining"), ("web-1", "draining"), ("web-2", "alive")
    ]  # fmt: skip
    assert shop.audited() == ("mara", "web", "workers drain")
    assert "say which workers" in await shop.surfer.page(shop.path("workers-drain", host="web-2", all="1"))
    assert "no worker runs on host" in await shop.surfer.page(shop.path("workers-drain", host="web-9"))


# Events --------------------------------------------------------------------------------------------------------------


async def test_a_subscription_is_put_elsewhere(full: Shop) -> None:
    position = "SELECT position FROM holdfast.subscriptions WHERE name = 'order_totals'"
    assert full.kit.sql(position)[0]["position"] == 59
    text = await full.done("subscriptions-reset", name="order_totals", to="40")
    assert "order_totals would continue after position 40: 19 events of the log again" in text
    assert "on top of what was applied before" in text
    assert full.kit.sql(position)[0]["position"] == 40
    assert full.audited() == ("mara", "web", "reset_subscription")
    sealed = fields(await full.surfer.page(full.path("subscriptions-reset", name="order_totals", to="50")))
    assert (await full.surfer.post("/acts/subscriptions-reset", {**sealed, "to": "start"})).status_code == 409
    for wrong in ("yesterday", "2026-05-01", "-3"):
        text = await full.surfer.page(full.path("subscriptions-reset", name="order_totals", to=wrong))
        assert "not a place in the log" in text


async def test_a_range_is_read_once_more_to_a_consumer(full: Shop) -> None:
    name = next(
        r["name"] for r in full.kit.sql("SELECT name FROM holdfast.subscriptions WHERE kind = 'jobs'")
    )
    before = len(full.kit.jobs(name))
    text = await full.done("subscriptions-replay", name=name, start="49", end="59", again="yes")
    assert f"10 events of the log would be read to {name} once more" in text
    assert full.audited() == ("mara", "web", "replay_events")
    await full.kit.app.run_worker(until_idle=True)
    assert len(full.kit.jobs(name)) == before + 10
    refused = await full.surfer.page(full.path("subscriptions-replay", name="order_totals", start="start"))
    assert "would count twice" in refused


async def test_a_replay_to_the_end_of_a_log_that_grows_ends_where_it_was_shown(full: Shop) -> None:
    name = next(
        r["name"] for r in full.kit.sql("SELECT name FROM holdfast.subscriptions WHERE kind = 'jobs'")
    )
    path = full.path("subscriptions-replay", name=name, start="start", again="yes")
    form = fields(await full.surfer.page(path))
    end = int(form["end"])
    for n in range(3):
        full.kit.app.publish(OrderPaid(n, customer=n, cents=1))
    assert int(fields(await full.surfer.page(path))["end"]) == end + 3
    answer = await full.surfer.post("/acts/subscriptions-replay", form)
    assert answer.status_code == 303
    (begun,) = full.kit.sql("SELECT until FROM holdfast.subscriptions WHERE replay_of IS NOT NULL")
    assert begun["until"] == end


async def test_a_projection_is_rebuilt_and_its_progress_is_shown(full: Shop) -> None:
    before = full.kit.sql("SELECT sum(cents) AS cents FROM order_totals")
    text = await full.done("projection-rebuild", name="order_totals")
    assert "Workers would read 59 events of the log into new tables beside order_totals" in text
    assert full.audited()[1:] == ("web", "projection rebuild")
    page = await full.surfer.page("/projections")
    assert "order_totals@1" in page
    assert '0</span> <span class="muted">of 59</span>' in page
    assert "is being rebuilt" in await full.surfer.page(full.path("projection-rebuild", name="order_totals"))
    await full.kit.app.run_worker(until_idle=True)
    await await_until(
        lambda: not full.kit.sql("SELECT FROM holdfast.subscriptions WHERE name ~ '@'"), "it is built"
    )
    assert full.kit.sql("SELECT sum(cents) AS cents FROM order_totals") == before
    assert "Give up" not in await full.surfer.page("/projections")


# Webhooks and workflows ----------------------------------------------------------------------------------------------


async def test_a_secret_is_made_anew_and_shown_once(shop: Shop) -> None:
    hooks = shop.kit.app.webhooks(on=["*"])
    shop.kit.create_queues()
    made = await hooks.endpoints.acreate(tenant="acme", url="https://acme.example/hooks")
    text = await shop.done("webhook-rotate", endpoint=str(made.id))
    assert "https://acme.example/hooks of acme would get a new secret" in text
    (secret,) = set(re.findall(r"whsec_[\w+/=]+", text))
    assert len(shop.kit.sql("SELECT FROM holdfast.webhook_secrets")) == 2
    assert shop.audited()[1] == "web"
    assert secret not in str(shop.kit.sql("SELECT * FROM holdfast.audit"))
    assert secret not in await shop.surfer.page(f"/webhooks/{made.id}")
    tokens = {hashed(TOKEN): Identity("ci", "admin")}
    program = Surfer(holdfast_web(shop.kit.app, authorize=BearerTokens(tokens)))
    program.client.headers["authorization"] = f"Bearer {TOKEN}"
    answer = await program.client.post("/api/v1/acts/webhook-rotate", json={"endpoint": str(made.id)})
    assert answer.json()["secret"].startswith("whsec_")


async def test_a_run_is_forked_from_a_step(full: Shop) -> None:
    run = full.kit.sql("SELECT id FROM holdfast.workflow_runs WHERE key = 'order:11'")[0]["id"]
    asks = await full.surfer.page(full.path("workflow-fork", run=str(run)))
    assert 'name="step"' in asks
    text = await full.done("workflow-fork", run=str(run), step="pay", id="order:11b")
    assert "and make again from pay on. This one stays as it is." in text
    assert full.audited() == ("mara", "web", "workflow fork")
    await full.kit.app.run_worker(until_idle=True)
    forked = checkout.get("order:11b")
    assert (await forked.astate())[0] == "suspended"
    assert "has not recorded" in await full.surfer.page(
        full.path("workflow-fork", run=str(run), step="nothing")
    )


async def test_the_new_acts_need_their_roles(surfer_of: Any, kit: Kit) -> None:
    operator = surfer_of("operator")
    for act in ("subscriptions-reset", "projection-rebuild", "webhook-rotate", "schedule-remove"):
        assert (await operator.get(f"/acts/{act}?name=x&endpoint=x")).status_code == 403
    viewer = surfer_of("viewer")
    for act in ("queue-create", "keys-hold", "schedule-add", "workflow-fork"):
        assert (await viewer.get(f"/acts/{act}")).status_code == 403
