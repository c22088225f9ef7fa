"""What programs call things: any act by its verb, a page's data by what there is in it, and one job enqueued by hand."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from tests.web.conftest import Shop
from tests.web.surfing import Surfer
from tests.web.test_access import TOKEN

from holdfast.operate.operator import Operator
from holdfast.pages import Role
from holdfast.testing import Kit
from holdfast.web import BearerTokens, Identity, hashed, holdfast_web

WAITING = "scheduled"


@pytest.fixture
async def program_of(kit: Kit) -> AsyncIterator[Callable[[Role], Surfer]]:
    made = []

    def make(role: Role) -> Surfer:
        made.append(holdfast_web(kit.app, authorize=BearerTokens({hashed(TOKEN): Identity("ci", role)})))
        surfer = Surfer(made[-1])
        surfer.client.headers["authorization"] = f"Bearer {TOKEN}"
        return surfer

    yield make
    for one in made:
        await one.site.close()
    await kit.database.aclose()


def state(kit: Kit, shop: Shop) -> str:
    return Operator(kit.database, "t").find_job(shop.waiting).job.state


async def test_an_operation_is_previewed_and_done_by_its_verb(
    program_of: Callable[[Role], Surfer], kit: Kit, shop: Shop
) -> None:
    program = program_of("operator")
    body = {"verb": "jobs cancel", "selection": {"state": WAITING, "tag": "vip"}, "reason": "asked for"}
    dry = await program.client.post("/api/v1/operations?dry_run=1", json=body)
    assert (dry.status_code, dry.json()["dry_run"], dry.json()["preview"]["count"]) == (200, True, 1), (
        dry.text
    )
    assert await asyncio.to_thread(state, kit, shop) == WAITING
    key = {"idempotency-key": "k-1"}
    done = await program.client.post("/api/v1/operations", json=body, headers=key)
    assert (done.status_code, done.json()["act"], done.json()["done"]["count"]) == (200, "jobs cancel", 1)
    assert await asyncio.to_thread(state, kit, shop) == "cancelled"
    again = await program.client.post("/api/v1/operations", json=body, headers=key)
    assert (again.json(), again.headers["idempotent-replayed"]) == (done.json(), "true")
    (line,) = (await asyncio.to_thread(Operator(kit.database, "t").list_audit)).entries[:1]
    assert (line.actor, line.surface, line.action, line.reason) == ("ci", "api", "jobs cancel", "asked for")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "has a verb"),
        ({"verb": "jobs nothing"}, "has a verb"),
        ({"verb": ["jobs cancel"]}, "has a verb"),
        ({"verb": "jobs cancel", "selection": ["all"]}, "has a verb"),
        ({"verb": "jobs cancel", "ids": []}, "does not know 'ids'"),
        ({"verb": "jobs cancel", "selection": {"stat": "dead"}}, "does not know 'stat'"),
        ({"verb": "dead redrive", "selection": {"ids": []}}, "names nothing"),
        ({"verb": "dead redrive"}, "say which dead letters"),
    ],
)
async def test_an_operation_that_is_none_is_refused(
    program_of: Callable[[Role], Surfer], kit: Kit, shop: Shop, body: dict[str, object], said: str
) -> None:
    before = await asyncio.to_thread(kit.sql, "SELECT count(*) AS n FROM holdfast.audit")
    answer = await program_of("admin").client.post("/api/v1/operations", json=body)
    assert (answer.status_code, said in answer.json()["detail"]) == (400, True), answer.text
    assert await asyncio.to_thread(kit.sql, "SELECT count(*) AS n FROM holdfast.audit") == before


async def test_an_operation_needs_the_role_of_its_act(
    program_of: Callable[[Role], Surfer], kit: Kit, shop: Shop
) -> None:
    body = {"verb": "dead discard", "selection": {"ids": [str(shop.dead)]}}
    for role in ("viewer", "operator"):
        for dry in ("", "?dry_run=1"):
            answer = await program_of(role).client.post(f"/api/v1/operations{dry}", json=body)
            assert (answer.status_code, "admin" in answer.text or role == "viewer") == (403, True), (
                answer.text
            )
    done = await program_of("admin").client.post("/api/v1/operations", json=body)
    assert (done.status_code, done.json()["done"]["count"]) == (200, 1)


async def test_a_pages_data_is_there_under_the_name_of_what_is_in_it(
    program_of: Callable[[Role], Surfer], shop: Shop
) -> None:
    program = program_of("operator")
    described = (await program.get("/api/v1/openapi.json")).json()["paths"]
    for name, page in (
        ("dead/groups", "dead"),
        ("ring/parcels", "keys/parcels"),
        ("subscriptions", "events"),
        ("endpoints", "webhooks"),
    ):
        assert (await program.get(f"/api/v1/{name}")).json() == (await program.get(f"/api/v1/{page}")).json()
        assert f"/api/v1/{name}".replace("parcels", "{queue}") in described
    why = (await program.get(f"/api/v1/jobs/{shop.waiting}/explain")).json()["data"]["explanation"]
    assert why["reasons"][0]["code"] == "scheduled", why


async def test_a_job_is_enqueued_by_page_and_by_program(
    mara: Surfer, program_of: Callable[[Role], Surfer], kit: Kit
) -> None:
    text = await mara.look("/acts/enqueue", task="send", arguments='{"order_id": "17"}', tags="vip night")
    assert "A job of send would be enqueued in queue inbox." in text
    assert "holdfast enqueue send --tag vip --tag night" in text
    assert await asyncio.to_thread(kit.sql, "SELECT FROM holdfast.work") == []
    from tests.web.surfing import fields

    answer = await mara.post("/acts/enqueue", fields(text))
    assert answer.status_code == 303, answer.text[-800:]
    (row,) = await asyncio.to_thread(kit.sql, "SELECT id, task, payload, tags FROM holdfast.work")
    assert (row["task"], row["payload"], row["tags"]) == ("send", {"order_id": 17}, ["vip", "night"])
    assert answer.headers["location"].endswith(f"/jobs/{row['id']}")
    body = {"task": "send", "arguments": {"order_id": 18}, "idempotency_key": "o-18"}
    program = program_of("operator")
    first = (await program.client.post("/api/v1/acts/enqueue", json=body)).json()["done"]
    again = (await program.client.post("/api/v1/acts/enqueue", json=body)).json()["done"]
    assert (again["id"], first["created"], again["created"]) == (first["id"], True, False)
    (line,) = (await asyncio.to_thread(Operator(kit.database, "t").list_audit)).entries[:1]
    assert (line.actor, line.action) == ("ci", "enqueue")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"task": "sent", "arguments": "{}"}, "Did you mean &#39;send&#39;?"),
        ({"task": "send", "arguments": "{}"}, "order_id"),
        ({"task": "send", "arguments": '{"order_id": 1}', "queue": "nowhere"}, "nowhere"),
        ({"task": "send", "arguments": "[1]"}, "must be a JSON object"),
    ],
)
async def test_a_job_that_cannot_be_is_not_enqueued(
    mara: Surfer, kit: Kit, given: dict[str, str], said: str
) -> None:
    text = await mara.look("/acts/enqueue", **given)
    if given.get("queue"):
        from tests.web.surfing import fields

        text = (await mara.post("/acts/enqueue", fields(text))).text
    assert said in text
    assert await asyncio.to_thread(kit.sql, "SELECT FROM holdfast.work") == []


async def test_a_job_is_enqueued_and_a_signal_sent_where_their_lists_are(
    program_of: Callable[[Role], Surfer], shop: Shop
) -> None:
    program = program_of("operator")
    body = {"task": "send", "arguments": {"order_id": 18}}
    dry = await program.client.post("/api/v1/jobs?dry_run=1", json=body)
    assert (dry.status_code, dry.json()["act"], dry.json()["dry_run"]) == (200, "enqueue", True), dry.text
    made = (await program.client.post("/api/v1/jobs", json=body)).json()["done"]
    assert (await program.get(f"/api/v1/jobs/{made['id']}")).json()["data"]["report"]["job"]["task"] == "send"
    assert (await program_of("viewer").client.post("/api/v1/jobs", json=body)).status_code == 403
    signal = {"signal": "paid", "payload": {}}
    sent = await program.client.post(f"/api/v1/workflows/{shop.done}/signals", json=signal)
    assert (sent.status_code, "run" in sent.json()["detail"]) == (404, True), sent.text
    twice = await program.client.post("/api/v1/workflows/a/signals", json={**signal, "run": "b"})
    assert (twice.status_code, "leave it out of the body" in twice.json()["detail"]) == (400, True)
    described = (await program.get("/api/v1/openapi.json")).json()["paths"]
    assert {"get", "post"} <= set(described["/api/v1/jobs"])
    post = described["/api/v1/workflows/{run}/signals"]["post"]
    assert [one["name"] for one in post["parameters"] if one["in"] == "path"] == ["run"]
    assert "run" not in post["requestBody"]["content"]["application/json"]["schema"]["properties"]


async def test_the_stream_is_there_for_programs_too(program_of: Callable[[Role], Surfer], shop: Shop) -> None:
    program = program_of("viewer")
    found = await program.get("/api/v1/live?topics=overview&poll=1")
    assert (found.status_code, "due" in found.json()) == (200, True)
