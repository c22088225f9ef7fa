"""Ping, redelivery of one and of a range; sealed secrets and rotation, as receivers see them; the audit."""

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from tests.conftest import wait_until
from tests.webhooks.support import OK, STEADY, Site, hooks_of, reply, verified

from holdfast import (
    ConfigurationError,
    EventsGone,
    Holdfast,
    Rate,
    SecretUnreadable,
    UnknownEndpoint,
    Webhooks,
)
from holdfast.operate.refusal import Refused
from holdfast.shapes.webhooks import store_acts
from holdfast.testing import Kit

RING = ",".join(
    f"{name}:{base64.b64encode(bytes([n]) * 32).decode()}" for n, name in enumerate(("new", "old"))
)
OLD = RING.partition(",")[2]


@pytest.fixture
def hooks(app: Holdfast, kit: Kit, site: Site) -> Webhooks:
    kit.database.settings = STEADY
    made = hooks_of(app, site, schedule=[0.01])
    kit.create_queues()
    kit.run_worker()
    return made


def publish(app: Holdfast, n: int, first: int = 0, tenant: str = "acme") -> list[str]:
    return [str(app.publish("order.paid", {"n": first + i}, headers={"tenant": tenant}).id) for i in range(n)]


def settled(hooks: Webhooks, status: str, **which: Any) -> list[Any]:
    return hooks.deliveries(tenant="acme", status=status, limit=1000, **which)  # type: ignore[arg-type]


def test_a_ping_is_sent_once_also_to_a_disabled_endpoint(
    app: Holdfast, kit: Kit, site: Site, hooks: Webhooks
) -> None:
    made = hooks.endpoints.create(tenant="acme", url=site.url())
    assert made.secret is not None
    hooks.endpoints.update(made.id, tenant="acme", status="disabled")
    with pytest.raises(UnknownEndpoint):
        hooks.ping(made.id, tenant="other")
    sent = hooks.ping(made.id, tenant="acme")
    assert (sent.cause, sent.status, sent.event_type) == ("ping", "pending", "webhook.ping")
    kit.run_worker()
    (request,) = site.requests
    assert verified(request, made.secret.value) == str(sent.event_id)
    assert json.loads(request.body)["type"] == "webhook.ping"
    assert [one.status for one in hooks.deliveries(tenant="acme")] == ["delivered"]
    site.answer = lambda _: reply(500)
    hooks.ping(made.id, tenant="acme")
    kit.run_worker()
    assert len(site.requests) == 2  # one attempt, whatever comes of it
    assert hooks.deliveries(tenant="acme")[0].status == "failed"
    with pytest.raises(ConfigurationError, match="is a ping"):
        hooks.redeliver(sent.id, tenant="acme")


def test_a_ping_is_none_of_the_events_that_payload_is_written_for(
    app: Holdfast, kit: Kit, site: Site
) -> None:
    kit.database.settings = STEADY
    hooks = hooks_of(app, site, payload=lambda event: {"number": event.data["n"]})
    kit.create_queues()
    kit.run_worker()
    made = hooks.endpoints.create(tenant="acme", url=site.url())
    hooks.ping(made.id, tenant="acme")
    publish(app, 1)
    kit.run_worker()
    assert {one.status for one in hooks.deliveries(tenant="acme")} == {"delivered"}
    bodies = [json.loads(request.body) for request in site.requests]
    assert sorted(body.get("type", body.get("number")) for body in bodies if body != {"number": 0}) == [
        "webhook.ping"
    ]
    assert {"number": 0} in bodies


def test_a_redelivery_has_the_same_id_and_the_address_and_secrets_of_now(
    app: Holdfast, kit: Kit, site: Site, hooks: Webhooks
) -> None:
    site.answer = lambda _: reply(500)
    made = hooks.endpoints.create(tenant="acme", url=site.url("/old"))
    (event,) = publish(app, 1)
    kit.run_worker()
    (failed,) = settled(hooks, "failed")
    site.answer = lambda _: reply(200)
    hooks.endpoints.update(made.id, tenant="acme", url=site.url("/new"))
    secret = hooks.endpoints.rotate(made.id, tenant="acme", overlap=0)
    with pytest.raises(UnknownEndpoint, match=f"has no delivery {failed.id}"):
        hooks.redeliver(failed.id, tenant="other")
    again = hooks.redeliver(failed.id, tenant="acme")
    assert (again.cause, again.status, again.id != failed.id) == ("redelivery", "pending", True)
    with pytest.raises(ConfigurationError, match=f"delivery {again.id} is pending"):
        hooks.redeliver(failed.id, tenant="acme")
    kit.run_worker()
    (request,) = site.of("/new")
    assert verified(request, secret.value) == event
    assert request.body == site.of("/old")[0].body
    assert {one.id: one.status for one in hooks.deliveries(tenant="acme")} == {
        failed.id: "failed",
        again.id: "delivered",
    }
    hooks.endpoints.update(made.id, tenant="acme", status="paused")
    with pytest.raises(ConfigurationError, match=r"is paused\. Make it active first"):
        hooks.redeliver(failed.id, tenant="acme")


def test_deliveries_are_read_page_by_page_the_newest_first(
    app: Holdfast, kit: Kit, site: Site, hooks: Webhooks
) -> None:
    hooks.endpoints.create(tenant="acme", url=site.url())
    publish(app, 5)
    kit.run_worker()
    whole = [one.id for one in hooks.deliveries(tenant="acme")]
    assert len(whole) == 5
    first = [one.id for one in hooks.deliveries(tenant="acme", limit=3)]
    rest = [one.id for one in hooks.deliveries(tenant="acme", limit=3, after=first[-1])]
    assert (first, rest) == (whole[:3], whole[3:])
    assert hooks.deliveries(tenant="acme", after=whole[-1]) == []


def test_a_range_is_what_failed_what_is_missing_or_all_and_of_the_tenant_alone(
    app: Holdfast, kit: Kit, site: Site, hooks: Webhooks
) -> None:
    before = datetime.now(UTC) - timedelta(minutes=1)
    publish(app, 3)  # before there is an endpoint: missing
    kit.run_worker()
    made = hooks.endpoints.create(tenant="acme", url=site.url(), events=["order.p*"])
    ok = publish(app, 2, 10)
    publish(app, 4, tenant="other")
    kit.run_worker()
    site.answer = lambda _: reply(500)
    failed = publish(app, 2, 20)
    kit.run_worker()
    site.reset()

    def count(**which: Any) -> int:
        return hooks.redeliver_range(made.id, tenant="acme", **{"since": before, "dry_run": True, **which})

    assert [count(only=which) for which in ("failed", "missing", "all")] == [2, 3, 7]
    assert count(since=app.events.last_position(), only="all") == 0
    assert count(since=0, until=3, only="missing") == 3
    assert site.requests == []
    assert hooks.redeliver_range(made.id, tenant="acme", since=before) == 2
    kit.run_worker()
    assert sorted(request.headers["webhook-id"] for request in site.requests) == sorted(failed)
    assert [count(only=which) for which in ("failed", "missing", "all")] == [0, 3, 7]
    assert hooks.redeliver_range(made.id, tenant="acme", since=before, only="missing", rate=Rate(1000)) == 3
    kit.run_worker()
    assert sorted(request.data["n"] for request in site.requests[2:]) == [0, 1, 2]
    assert hooks.redeliver_range(made.id, tenant="acme", since=before, only="all") == 7
    kit.run_worker()
    assert len(site.requests) == 2 + 3 + 7
    assert set(ok) <= {request.headers["webhook-id"] for request in site.requests}
    assert kit.sql("SELECT * FROM holdfast.webhook_ranges") == []
    with pytest.raises(UnknownEndpoint):
        hooks.redeliver_range(made.id, tenant="other", since=before)


def test_what_the_log_no_longer_has_is_refused_with_the_numbers(
    app: Holdfast, kit: Kit, site: Site, hooks: Webhooks
) -> None:
    site.answer = lambda _: reply(500)
    made = hooks.endpoints.create(tenant="acme", url=site.url())
    publish(app, 2)
    kit.run_worker()
    (one, _) = settled(hooks, "failed")
    kit.sql("DELETE FROM holdfast.events")
    kit.sql("UPDATE holdfast.event_log SET start_pos = 2")
    with pytest.raises(EventsGone, match=r"at position \d: it begins after position 2"):
        hooks.redeliver(one.id, tenant="acme")
    with pytest.raises(EventsGone, match=r"the log begins after position 2.*, and events after 0 are gone"):
        hooks.redeliver_range(made.id, tenant="acme", since=0)
    with pytest.raises(EventsGone, match="the log begins after position 2"):
        hooks.redeliver_range(made.id, tenant="acme", since=datetime(2020, 1, 1, tzinfo=UTC))


def test_bad_ranges_are_refused_in_words(app: Holdfast, kit: Kit, site: Site, hooks: Webhooks) -> None:
    now = datetime.now(UTC)
    for given, text in (
        ({"since": datetime(2026, 1, 1)}, "since must have a time zone"),  # noqa: DTZ001
        ({"since": "now"}, "since must be a time or a position of the log, not str 'now'"),
        ({"since": -1}, "since must be a time or a position"),
        ({"since": now, "only": "some"}, "only must be failed, missing or all"),
        ({"since": now, "rate": 5}, "rate must be a Rate"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            hooks.redeliver_range(uuid4(), tenant="acme", **given)


def test_where_a_function_says_whose_an_event_is_only_what_failed_is_a_range(
    app: Holdfast, kit: Kit, site: Site
) -> None:
    kit.database.settings = STEADY
    hooks = hooks_of(app, site, schedule=[0.01], tenant=lambda event: event.data["whose"])
    kit.create_queues()
    kit.run_worker()
    made = hooks.endpoints.create(tenant="acme", url=site.url())
    site.answer = lambda _: reply(410)
    for whose in ("acme", "globex"):
        app.publish("order.paid", {"whose": whose})
    kit.run_worker()
    assert [d.status for d in hooks.deliveries(tenant="acme")] == ["failed"]
    site.answer = lambda _: OK
    hooks.endpoints.update(made.id, tenant="acme", status="active")
    for only in ("missing", "all"):
        said = f'only="{only}" needs a header .* Use only="failed", or hooks.replay'
        with pytest.raises(Refused, match=said):
            hooks.redeliver_range(made.id, tenant="acme", since=0, only=only)
    assert hooks.redeliver_range(made.id, tenant="acme", since=0) == 1

    def delivered() -> bool:
        kit.run_worker()
        return len(settled(hooks, "delivered")) == 1

    wait_until(delivered, "it is delivered")


def test_where_a_function_says_whose_an_event_is_a_replay_sends_what_is_missing(
    app: Holdfast, kit: Kit, site: Site
) -> None:
    kit.database.settings = STEADY
    hooks = hooks_of(app, site, tenant=lambda event: event.data["whose"])
    kit.create_queues()
    kit.run_worker()
    hooks.endpoints.create(tenant="acme", url=site.url("/early"))
    for whose in ("acme", "globex", "acme"):
        app.publish("order.paid", {"whose": whose})
    kit.run_worker()
    late = hooks.endpoints.create(tenant="acme", url=site.url("/late"))
    hooks.replay(0)
    kit.run_worker()
    assert len(hooks.deliveries(tenant="acme", endpoint=late.id)) == 2, "its own, and nothing of globex"
    assert len(hooks.deliveries(tenant="acme")) == 4, "the other gets nothing a second time"


def test_a_range_without_a_rate_goes_in_large_pieces(
    app: Holdfast, kit: Kit, site: Site, hooks: Webhooks
) -> None:
    publish(app, 120)
    kit.run_worker()
    made = hooks.endpoints.create(tenant="acme", url=site.url())
    assert hooks.redeliver_range(made.id, tenant="acme", since=0, only="missing") == 120
    details = store_acts.details("acme", made.id)
    (shown,) = kit.database.run(lambda: details)["ranges"]  # type: ignore[index]
    assert shown["rate"] is None
    step = "SELECT made, ended FROM holdfast.webhook_range_step(2, 2, 50)"
    steps = []
    for _ in range(3):
        steps += [(row["made"], row["ended"]) for row in kit.sql(step)]
        kit.clock.advance(1)
    assert steps == [(50, False), (50, False), (20, True)]


def test_a_range_goes_at_its_rate_and_waits_for_an_endpoint_that_is_paused(
    app: Holdfast, kit: Kit, site: Site, hooks: Webhooks
) -> None:
    publish(app, 30)
    kit.run_worker()
    made = hooks.endpoints.create(tenant="acme", url=site.url())
    assert (
        hooks.redeliver_range(made.id, tenant="acme", since=0, only="missing", rate=Rate(1, per="1h")) == 30
    )
    step = "SELECT made, ended FROM holdfast.webhook_range_step(2, 2, 500)"
    assert [(r["made"], r["ended"]) for r in kit.sql(step)] == [(1, False)]
    assert kit.sql(step) == []  # an hour has not passed
    kit.clock.advance("61m")
    assert [r["made"] for r in kit.sql(step)] == [1]
    hooks.endpoints.update(made.id, tenant="acme", status="paused")
    kit.clock.advance("2h")
    assert [(r["made"], r["ended"]) for r in kit.sql(step)] == [(0, False)]
    hooks.endpoints.update(made.id, tenant="acme", status="active")
    total = 2
    for _ in range(40):
        kit.clock.advance("61m")
        total += sum(r["made"] for r in kit.sql(step))
    assert total == 30
    assert kit.sql("SELECT * FROM holdfast.webhook_ranges") == []


def test_secrets_and_headers_are_sealed_and_resealed(
    app: Holdfast, kit: Kit, site: Site, hooks: Webhooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = hooks.endpoints.create(tenant="acme", url=site.url("/bare"))
    monkeypatch.setenv("HOLDFAST_SECRET_KEYS", OLD)
    made = hooks.endpoints.create(tenant="acme", url=site.url("/sealed"), headers={"x-token": "tok-123"})
    assert made.secret is not None
    assert bare.secret is not None
    stored = kit.sql("SELECT key_id, sealed FROM holdfast.webhook_secrets ORDER BY created_at")
    assert [row["key_id"] for row in stored] == [None, "old"]
    assert bytes(stored[0]["sealed"]).decode() == bare.secret.value
    assert made.secret.value.encode() not in bytes(stored[1]["sealed"])
    (row,) = kit.sql(
        "SELECT headers, headers_key_id FROM holdfast.webhook_endpoints WHERE headers IS NOT NULL"
    )
    assert (b"tok-123" in bytes(row["headers"]), row["headers_key_id"]) == (False, "old")

    from holdfast.shapes.webhooks.acts import Acts
    from holdfast.shapes.webhooks.spec import Spec

    acts = Acts(Spec(), "ann")
    monkeypatch.setenv("HOLDFAST_SECRET_KEYS", RING.partition(",")[0])
    with pytest.raises(SecretUnreadable, match=f"endpoint {made.id}: a secret is sealed by key 'old'"):
        kit.database.run(acts.reseal())
    monkeypatch.setenv("HOLDFAST_SECRET_KEYS", RING)
    assert [kit.database.run(acts.reseal()), kit.database.run(acts.reseal())] == [3, 0]
    monkeypatch.setenv("HOLDFAST_SECRET_KEYS", RING.partition(",")[0])
    publish(app, 1)
    kit.run_worker()
    assert verified(site.of("/sealed")[0], made.secret.value)
    assert verified(site.of("/bare")[0], bare.secret.value)
    assert site.of("/sealed")[0].headers["x-token"] == "tok-123"
    monkeypatch.delenv("HOLDFAST_SECRET_KEYS")
    with pytest.raises(ConfigurationError, match="there is no key to seal with"):
        acts.reseal()


def test_a_secret_row_that_is_moved_to_another_endpoint_signs_nothing(
    app: Holdfast, kit: Kit, site: Site, hooks: Webhooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SECRET_KEYS", OLD)
    mine = hooks.endpoints.create(tenant="acme", url=site.url("/mine"))
    theirs = hooks.endpoints.create(tenant="other", url=site.url("/theirs"))
    kit.sql("DELETE FROM holdfast.webhook_secrets WHERE endpoint_id = %s", [mine.id])
    kit.sql(
        "UPDATE holdfast.webhook_secrets SET endpoint_id = %s WHERE endpoint_id = %s", [mine.id, theirs.id]
    )
    publish(app, 1)
    kit.run_worker()
    assert site.requests == []


def test_old_secrets_sign_during_the_overlap_and_not_after_it(
    app: Holdfast, kit: Kit, site: Site, hooks: Webhooks
) -> None:
    made = hooks.endpoints.create(tenant="acme", url=site.url())
    assert made.secret is not None
    new = hooks.endpoints.rotate(made.id, tenant="acme", overlap="1h")
    (event,) = publish(app, 1)
    kit.run_worker()
    request = site.requests[-1]
    assert len(request.headers["webhook-signature"].split(" ")) == 2
    assert verified(request, made.secret.value) == verified(request, new.value) == event
    first = request.headers["webhook-signature"].split(" ")[0]
    leaked = hooks.endpoints.rotate(made.id, tenant="acme", overlap=0)
    publish(app, 1)
    kit.run_worker()
    request = site.requests[-1]
    assert len(request.headers["webhook-signature"].split(" ")) == 1
    assert verified(request, leaked.value)
    assert first not in request.headers["webhook-signature"]


def test_each_act_is_in_the_audit_without_secrets(
    app: Holdfast, kit: Kit, site: Site, hooks: Webhooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_ACTOR", "ann")
    site.answer = lambda _: reply(500)
    made = hooks.endpoints.create(tenant="acme", url=site.url("/T/tok-1"), headers={"x": "tok-2"})
    hooks.endpoints.update(made.id, tenant="acme", url=site.url("/T/tok-3"))
    publish(app, 2)
    kit.run_worker()
    (one, _) = settled(hooks, "failed")
    hooks.redeliver(one.id, tenant="acme")
    hooks.redeliver_range(made.id, tenant="acme", since=0)
    hooks.endpoints.rotate(made.id, tenant="acme")
    hooks.ping(made.id, tenant="acme")
    hooks.endpoints.update(made.id, tenant="acme", status="paused")
    hooks.endpoints.delete(made.id, tenant="acme")
    rows = kit.sql("SELECT actor, action, selection::text FROM holdfast.audit ORDER BY id")
    acts = ["create", "update", "redeliver", "redeliver_range", "rotate", "ping", "pause", "delete"]
    assert [(row["actor"], row["action"]) for row in rows] == [("ann", f"webhook {act}") for act in acts]
    assert not any(word in row["selection"] for row in rows for word in ("tok-", "whsec_"))
