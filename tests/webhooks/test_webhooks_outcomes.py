"""What becomes of a delivery and its endpoint, reply by reply, against a server that can do all of it."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, Literal
from uuid import UUID

import pytest
from tests.webhooks.support import OK, STEADY, Request, Site, held, hooks_of, reply, state, verified

from holdfast import Delivery, Egress, Endpoint, Holdfast, Webhooks
from holdfast.egress import Reply, SendFailed, retry_after
from holdfast.shapes.webhooks.spec import SCHEDULE, Spec
from holdfast.shapes.webhooks.verdict import LONGEST_WAIT, judge
from holdfast.testing import Kit

NOW = datetime(2026, 11, 17, tzinfo=UTC)
ACME = {"tenant": "acme"}


def ready(app: Holdfast, kit: Kit, site: Site, **options: Any) -> Webhooks:
    kit.database.settings = STEADY
    hooks = hooks_of(app, site, **options)
    kit.create_queues()
    kit.run_worker()
    return hooks


async def stall(request: Request) -> bytes:
    await asyncio.sleep(3600)
    return OK


async def trickle(request: Request) -> None:
    """A byte at a time, for longer than anybody waits."""
    for byte in b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n":
        request.writer.write(bytes([byte]))
        await request.writer.drain()
        await asyncio.sleep(0.005)
    while True:
        request.writer.write(b"x")
        await request.writer.drain()
        await asyncio.sleep(0.005)


async def much(request: Request) -> None:
    """A head of 2xx, and a gigabyte."""
    request.writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1073741824\r\n\r\n")
    piece = b"x" * 65536
    for _ in range(16384):
        request.writer.write(piece)
        await request.writer.drain()


def cut(request: Request) -> None:
    request.writer.transport.abort()


def later() -> str:
    return format_datetime(datetime.now(UTC) + timedelta(hours=3), usegmt=True)


ANSWERS: dict[str, Any] = {
    "/ok": lambda _: reply(204),
    "/redirect": lambda _: reply(302, "location: /elsewhere"),
    "/error": lambda _: reply(500, "x-why: broken", body=b"sorry"),
    "/refused": lambda _: reply(422),
    "/reset": cut,
    "/stall": stall,
    "/trickle": trickle,
    "/much": much,
    "/chunks": lambda _: b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nno\r\n",
    "/head": lambda _: b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000 + b"\r\n\r\n",
    "/garbage": lambda _: b"\0\0\0 what?\r\n\r\n",
    "/limited": lambda _: reply(429, "retry-after: 7200"),
    "/away": lambda _: reply(503, f"retry-after: {later()}"),
    "/for-ever": lambda _: reply(503, "retry-after: 1000000000"),
    "/asks-nothing": lambda _: reply(503, "retry-after: soon"),
}
EXPECTED: dict[str, tuple[int | None, str | None]] = {
    "/ok": (204, None),
    "/redirect": (302, "redirect"),
    "/error": (500, None),
    "/refused": (422, None),
    "/reset": (None, "protocol"),
    "/stall": (None, "timeout"),
    "/trickle": (None, "timeout"),
    "/much": (200, None),
    "/chunks": (None, "protocol"),
    "/head": (None, "too_large"),
    "/garbage": (None, "protocol"),
    "/limited": (429, None),
    "/away": (503, None),
    "/for-ever": (503, None),
    "/asks-nothing": (503, None),
}
ASKED = {"/limited": 7200, "/away": 3 * 3600, "/for-ever": 6 * 3600}


def test_every_reply_has_its_outcome(app: Holdfast, kit: Kit, site: Site) -> None:
    egress = Egress(allow_networks=["127.0.0.0/8"], allow_http=True, ports=[site.port], timeout=8)
    hooks = ready(app, kit, site, egress=egress, keep_body=True, schedule=["1h", "2h"])
    site.answer = lambda request: ANSWERS[request.path](request)
    made = {path: hooks.endpoints.create(tenant="acme", url=site.url(path)) for path in ANSWERS}
    app.publish("order.paid", {"n": 1}, headers=ACME)
    kit.run_worker()
    found = {delivery.endpoint_id: delivery for delivery in hooks.deliveries(tenant="acme")}
    holds = held(kit)
    for path, endpoint in made.items():
        delivery = found[endpoint.id]
        (attempt,) = delivery.attempts
        assert (path, attempt.status, attempt.error) == (path, *EXPECTED[path])
        worked = path in ("/ok", "/much")
        assert (path, delivery.status) == (path, "delivered" if worked else "pending")
        health = state(kit, endpoint)
        assert health["status"] == "active"
        assert (path, health["failing_since"] is None) == (path, worked)
        due = delivery.next_attempt_at or attempt.at
        wait = (due - attempt.at).total_seconds()
        if path in ASKED:
            hold = holds[str(endpoint.id)]
            assert wait == pytest.approx(ASKED[path], abs=900)
            assert (hold["until"] - hold["held_at"]).total_seconds() == pytest.approx(ASKED[path], abs=900)
            assert not hold["trial"]
        else:
            assert str(endpoint.id) not in holds
            assert worked or 2880 <= wait <= 4320, f"{path}: the first step of the schedule, with jitter"
    assert site.of("/elsewhere") == [], "a redirect is never followed"
    assert len(site.requests) == len(ANSWERS)
    error = found[made["/error"].id].attempts[0]
    assert (error.response_headers["x-why"], error.response_body) == ("broken", "sorry")
    assert len(found[made["/much"].id].attempts[0].response_body or "") == 4096


def test_410_disables_at_once_and_cancels_what_is_pending(app: Holdfast, kit: Kit, site: Site) -> None:
    hooks = ready(app, kit, site, on=["*"])
    gone = hooks.endpoints.create(tenant="acme", url=site.url("/gone"), events=["order.*"])
    told = hooks.endpoints.create(tenant="acme", url=site.url("/told"), events=["holdfast.webhook.*"])
    site.answer = lambda request: reply(500) if request.path == "/gone" else OK
    app.publish("order.paid", {"n": 1}, headers=ACME)
    kit.run_worker()
    site.answer = lambda request: reply(410) if request.path == "/gone" else OK
    app.publish("order.paid", {"n": 2}, headers=ACME)
    kit.run_worker()
    row = state(kit, gone)
    assert (row["status"], row["disabled_reason"]) == ("disabled", "gone")
    second, first = hooks.deliveries(tenant="acme", endpoint=gone.id)
    assert (second.status, second.reason) == ("failed", "HTTP 410: the endpoint is gone")
    assert (first.status, first.reason) == ("cancelled", "endpoint disabled: gone")
    event = kit.assert_published("holdfast.webhook.disabled", endpoint=str(gone.id), reason="gone")
    assert event.headers["tenant"] == "acme"
    assert [request.headers["webhook-id"] for request in site.of("/told")] == [str(event.id)]
    assert hooks.endpoints.get(told.id, tenant="acme").status == "active"
    app.publish("order.paid", {"n": 3}, headers=ACME)
    kit.clock.advance(4400)
    kit.run_worker()
    assert len(site.of("/gone")) == 2, "nothing is sent to it, and nothing new is made for it"
    assert len(hooks.deliveries(tenant="acme", endpoint=gone.id)) == 2
    assert {job["status"] for job in kit.jobs("holdfast.webhook")} <= {"completed", "cancelled"}


def test_a_reply_may_end_its_delivery_or_its_endpoint_where_that_is_allowed(
    app: Holdfast, kit: Kit, site: Site
) -> None:
    hooks = ready(app, kit, site, delivery_control=True)
    made = {
        path: hooks.endpoints.create(tenant="acme", url=site.url(path))
        for path in ("/abort", "/disable", "/ok")
    }
    headers = {"/abort": "Webhook-Delivery: abort-message", "/disable": "webhook-delivery: disable"}
    site.answer = lambda request: (
        reply(422, headers[request.path]) if request.path in headers else reply(200, headers["/disable"])
    )
    app.publish("order.paid", {"n": 1}, headers=ACME)
    kit.run_worker()
    found = {delivery.endpoint_id: delivery for delivery in hooks.deliveries(tenant="acme")}
    ends = {path: (found[one.id].status, found[one.id].reason) for path, one in made.items()}
    assert ends == {
        "/abort": ("failed", "HTTP 422: the endpoint asks for no further attempt"),
        "/disable": ("failed", "HTTP 422: the endpoint asks to be disabled"),
        "/ok": ("delivered", None),
    }
    assert [attempt.status for attempt in found[made["/abort"].id].attempts] == [422]
    states = {path: state(kit, one) for path, one in made.items()}
    assert {path: row["status"] for path, row in states.items()} == {
        "/abort": "active", "/disable": "disabled", "/ok": "active"
    }  # fmt: skip
    assert states["/disable"]["disabled_reason"] == "asked_for"
    assert states["/abort"]["failing_since"] is None, "it is there, and says what it wants"
    kit.clock.advance(4400)
    kit.run_worker()
    assert len(site.of("/abort")) == len(site.of("/disable")) == 1


@pytest.mark.parametrize("said", ["abort-message", "disable", "anything"])
def test_without_it_a_reply_says_nothing_by_its_headers(said: str) -> None:
    found = Reply(422, {"webhook-delivery": said}, b"", None, 0.1)
    assert judge(found, 0, NOW) == judge(Reply(422, {}, b"", None, 0.1), 0, NOW)
    odd = Reply(422, {"webhook-delivery": "abort-message, disable"}, b"", None, 0.1)
    assert judge(odd, 0, NOW, control=True) == judge(odd, 0, NOW)


@pytest.mark.parametrize("oversized", ["truncate", "fail"])
def test_a_body_of_more_than_256_kib_is_not_sent(
    app: Holdfast, kit: Kit, site: Site, oversized: Literal["truncate", "fail"]
) -> None:
    sizes = {1: 262_144, 2: 262_145}
    hooks = ready(
        app, kit, site, oversized=oversized, payload=lambda event: {"x": "y" * (sizes[event.data["n"]] - 8)}
    )
    made = hooks.endpoints.create(tenant="acme", url=site.url())
    published = [app.publish("order.paid", {"n": n}, headers=ACME) for n in sizes]
    kit.run_worker()
    bodies = {request.headers["webhook-id"]: request.body for request in site.requests}
    assert len(bodies[str(published[0].id)]) == 262_144
    second, first = hooks.deliveries(tenant="acme")
    assert first.status == "delivered"
    if oversized == "fail":
        reason = "too large: its body is 262,145 bytes, and 262,144 may be sent"
        assert (second.status, second.reason, len(bodies)) == ("failed", reason, 1)
        return
    assert second.status == "delivered"
    sent = json.loads(bodies[str(published[1].id)])
    assert sent.pop("timestamp").endswith("Z")
    assert sent == {"type": "order.paid", "id": str(published[1].id), "data": None, "truncated": True}
    assert made.secret is not None
    assert {verified(request, made.secret.value) for request in site.requests} == {
        str(p.id) for p in published
    }


def test_the_schedule_is_followed_to_its_end_with_one_id(app: Holdfast, kit: Kit, site: Site) -> None:
    hooks = ready(app, kit, site, schedule=["1h", "2h"])
    made = hooks.endpoints.create(tenant="acme", url=site.url())
    site.answer = lambda _: reply(500)
    published = app.publish("order.paid", {"n": 1}, headers=ACME)
    for pause in (0, 4400, 8700):
        kit.clock.advance(pause)
        kit.run_worker()
    (delivery,) = hooks.deliveries(tenant="acme")
    assert (delivery.status, delivery.reason, delivery.next_attempt_at) == ("failed", "HTTP 500", None)
    assert [(attempt.n, attempt.status) for attempt in delivery.attempts] == [(1, 500), (2, 500), (3, 500)]
    (dead,) = kit.sql("SELECT id, queue, last_error FROM holdfast.dead_letters")
    assert (dead["id"], dead["queue"]) == (delivery.id, "webhooks")
    assert {request.headers["webhook-id"] for request in site.requests} == {str(published.id)}
    assert len({request.body for request in site.requests}) == 1
    assert len({request.headers["webhook-timestamp"] for request in site.requests}) == 3
    assert made.secret is not None
    assert verified(site.requests[0], made.secret.value) == str(published.id)


def test_an_address_that_is_refused_three_times_disables(app: Holdfast, kit: Kit, site: Site) -> None:
    hooks = ready(app, kit, site)
    made = hooks.endpoints.create(tenant="acme", url=site.url())
    moved = f"http://10.1.2.3:{site.port}/inside"  # as a name that leads elsewhere since
    kit.sql("UPDATE holdfast.webhook_endpoints SET url = %s", [moved])
    app.publish("order.paid", {"n": 1}, headers=ACME)
    for n, pause in enumerate((0, 4400, 4400), 1):
        kit.clock.advance(pause)
        kit.run_worker()
        assert state(kit, made)["status"] == ("active" if n < 3 else "disabled")
    (delivery,) = hooks.deliveries(tenant="acme")
    assert [(attempt.error, attempt.url) for attempt in delivery.attempts] == [("refused_address", moved)] * 3
    assert delivery.status == "failed"
    assert "10.1.2.3" not in (delivery.reason or ""), "a tenant learns nothing of the inside"
    assert hooks.endpoints.get(made.id, tenant="acme").disabled_reason == "forbidden_address"


def test_an_event_that_the_log_no_longer_has_fails_visibly(app: Holdfast, kit: Kit, site: Site) -> None:
    hooks = ready(app, kit, site)
    hooks.endpoints.create(tenant="acme", url=site.url())
    app.publish("order.paid", {"n": 1}, headers=ACME)
    app.publish("order.paid", {"n": 2}, headers=ACME)
    kit.run_projections()
    kit.sql("DELETE FROM holdfast.events WHERE data->>'n' = '1'")
    kit.sql("UPDATE holdfast.events SET data = NULL WHERE data->>'n' = '2'")
    kit.run_worker()
    erased, gone = hooks.deliveries(tenant="acme")
    assert (gone.status, gone.reason) == ("failed", "expired: the log no longer has the event")
    assert (erased.status, erased.reason) == ("cancelled", "the data of the event was erased")
    assert site.requests == []


def test_the_log_is_kept_for_a_delivery_that_has_not_ended(app: Holdfast, kit: Kit, site: Site) -> None:
    hooks = ready(app, kit, site)
    hooks.endpoints.create(tenant="acme", url=site.url())
    site.answer = lambda _: reply(500)
    app.publish("order.paid", {"n": 1}, headers=ACME)
    kit.run_worker()
    kit.clock.advance("10d")  # three days longer than the log is kept
    kit.sql("SELECT holdfast.empty_event_slots()")
    assert kit.sql("SELECT count(*) FROM holdfast.events") == [{"count": 1}]
    site.answer = lambda _: OK
    kit.run_worker()
    (delivery,) = hooks.deliveries(tenant="acme")
    assert [attempt.status for attempt in delivery.attempts] == [500, 200]
    kit.sql("SELECT holdfast.empty_event_slots()")
    assert kit.sql("SELECT count(*) FROM holdfast.events") == [{"count": 0}]


# Without a database ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120.0),
        (" 120 ", 120.0),
        ("0", None),
        ("-5", None),
        ("1e3", None),
        ("1.5", None),
        ("1000000000", 21600.0),
        ("9" * 90, 21600.0),
        ("9" * 200, None),
        ("soon", None),
        ("", None),
        ("Tue, 17 Nov 2026 00:10:00 GMT", 600.0),
        ("Tue, 17 Nov 2026 00:10:00", 600.0),
        ("Mon, 16 Nov 2026 23:00:00 GMT", None),
        ("Tue, 17 Nov 9999 00:10:00 GMT", 21600.0),
        ("Tue, 99 Nov 2026 00:10:00 GMT", None),
        ("\u0661\u0662", None),
    ],
)
def test_retry_after_in_both_forms(text: str, seconds: float | None) -> None:
    assert retry_after({"retry-after": text}, NOW, longest=LONGEST_WAIT) == seconds
    for status, counts in ((429, True), (503, True), (500, False), (404, False)):
        verdict = judge(Reply(status, {"retry-after": text}, b"", None, 0.0), 0, NOW)
        assert verdict.wait == (seconds if counts else None)


def test_a_refusal_in_between_starts_the_count_anew() -> None:
    refused = SendFailed("refused_address", "10.0.0.1 is private", "10.0.0.1", 0.0)
    assert [judge(refused, n, NOW).disable for n in range(4)] == [None, None, *["forbidden_address"] * 2]
    assert "10.0.0.1" not in judge(refused, 0, NOW).why


def test_the_schedule_lasts_as_long_in_order() -> None:
    spec = Spec()
    assert sum(SCHEDULE) == 272105  # 75.6 hours
    assert (spec.attempts, max(spec.ordered_schedule)) == (10, 3600)
    assert sum(SCHEDULE) - 3600 < sum(spec.ordered_schedule) <= sum(SCHEDULE)


def _ids(deliveries: list[Delivery]) -> list[UUID]:
    return [delivery.endpoint_id for delivery in deliveries]


__all__ = ["Endpoint", "ready"]
