"""Jobs by worker, by attempts and by a field of the payload: in the address, for programs and for acts; and what no
filter tells."""

import asyncio
import json
import re
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from tests.web.conftest import Shop
from tests.web.surfing import Surfer, made_for

from holdfast import Holdfast
from holdfast.testing import Kit
from holdfast.web.application import Dashboard
from holdfast.web.identity import Identity
from holdfast.web.lists import watched_list

TOKEN = {"authorization": "Bearer x"}


async def _ids(surfer: Surfer, query: str) -> list[str]:
    answer = await surfer.get(f"/api/v1/jobs?{query}")
    assert answer.status_code == 200, answer.text
    return [job["id"] for job in answer.json()["data"]["jobs"]]


async def test_jobs_of_a_worker_by_attempts_and_by_a_field(mara: Surfer, kit: Kit, shop: Shop) -> None:
    (row,) = kit.sql("SELECT claimed_by FROM holdfast.dead_letters WHERE id = %s", [shop.dead])
    worker = row["claimed_by"]
    text = await mara.page(f"/jobs?worker={quote(worker)}&state=completed")
    assert f"holdfast jobs list --state completed --worker {worker}" in text
    assert [str(job) in text for job in (shop.done, shop.waiting)] == [True, False]
    assert await _ids(mara, f"worker={quote(worker)}&task=charge") == [str(shop.dead)]
    assert await _ids(mara, "worker=nobody") == []
    assert str(shop.dead) in await _ids(mara, "min_attempts=1")
    assert await _ids(mara, "min_attempts=2") == []
    assert await _ids(mara, "task=send&field=order_id=3") == [str(shop.waiting)]
    text = await mara.page("/jobs?task=send&field=order_id=3")
    assert "holdfast jobs list --task send --field order_id=3" in text
    assert 'name="field" value="order_id=3"' in text


@pytest.mark.parametrize("word", ["dead", "dead_letter"])
async def test_dead_is_taken_for_dead_letter_in_the_address(mara: Surfer, shop: Shop, word: str) -> None:
    text = await mara.page(f"/jobs?state={word}")
    assert [str(job) in text for job in (shop.dead, shop.waiting)] == [True, False]
    tabs = text.partition('aria-label="State">')[2].partition("</nav>")[0]
    (marked,) = re.findall(r'<a href="([^"]*)" aria-current="page">', tabs)
    assert marked.endswith("/jobs?state=dead_letter")


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("field=order_id=3", "field needs a queue, a task or a state beside it. Name one of them"),
        ("task=send&field=order_id", "field takes NAME=VALUE"),
        ("min_attempts=two", "min_attempts must be a whole number, not 'two'"),
        ("min_attempts=0", "min_attempts must be between 1 and 2147483647, not 0"),
        ("worker=a%00b", "is not valid text. Leave out NUL and broken characters"),
        ("feild=a=b", "Did you mean field?"),
    ],
)
async def test_a_filter_that_cannot_be_is_refused_in_words(mara: Surfer, query: str, sentence: str) -> None:
    answer = await mara.get(f"/api/v1/jobs?{query}")
    assert (answer.status_code, sentence in answer.json()["detail"]) == (400, True), answer.text
    assert (await mara.get(f"/jobs?{query}")).status_code == 400


async def test_an_act_takes_the_same_filters(mara: Surfer, kit: Kit, shop: Shop) -> None:
    other = kit.app.send("send", {"order_id": 4}, run_after=timedelta(hours=1))
    kit.sql("UPDATE holdfast.work SET attempts = 2")
    which = {"state": "scheduled", "min_attempts": 2, "field": "order_id=3"}
    seen = await mara.client.post("/api/v1/acts/jobs-cancel?dry_run=1", json=which, headers=TOKEN)
    assert seen.json()["preview"]["count"] == 1, seen.text
    page = await mara.page("/acts/jobs-cancel?state=scheduled&field=order_id=3")
    assert "holdfast jobs cancel --state scheduled --field order_id=3 --yes" in page
    answer = await mara.confirm("/acts/jobs-cancel?state=scheduled&field=order_id=3")
    assert answer.status_code == 303
    states = {one.id: kit.job(one.id)["status"] for one in (other,)}
    assert (kit.job(shop.waiting)["status"], states[other.id]) == ("cancelled", "scheduled")
    answer = await mara.client.post("/api/v1/acts/jobs-cancel", json={"field": "order_id=4"}, headers=TOKEN)
    assert (answer.status_code, "field needs a queue" in answer.text) == (400, True)


async def test_openapi_names_the_filters(mara: Surfer) -> None:
    found = (await mara.get("/api/v1/openapi.json")).json()["paths"]
    names = {one["name"] for one in found["/api/v1/jobs"]["get"]["parameters"]}
    assert {"worker", "min_attempts", "field"} <= names
    body = found["/api/v1/acts/jobs-retry"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"worker", "min_attempts", "field"} <= set(body["properties"])


# What no filter tells --------------------------------------------------------------------------------------------------

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl"
SECRET = [
    ("task=treat", "diagnosis=gout", "'diagnosis' is masked"),
    ("task=treat", "address.street=Elm Row", "'street' is masked"),
    ("state=scheduled", "diagnosis=gout", "'diagnosis' is masked"),  # a task that masks it may be among them
    ("task=charge", "card_token=tok_4242", "'card_token' is masked"),
    ("task=charge", "card_token.0=t", "'card_token' is masked"),
    ("task=charge", f"note={JWT}", "a value that looks like a secret is masked"),
    ("task=charge", "note=4111 1111 1111 1111", "a value that looks like a secret is masked"),
    ("task=treat", 'note={"diagnosis": "gout"}', "a value that looks like a secret is masked"),
]


def _everywhere(surfer: Surfer, which: str, field: str) -> dict[str, Callable[[], Any]]:
    query = f"{which}&field={quote(field)}"
    name, _, value = which.partition("=")
    body = {name: value, "field": field}
    sent: dict[str, Any] = {"json": body, "headers": TOKEN}
    return {
        "page": lambda: surfer.get(f"/jobs?{query}"),
        "api": lambda: surfer.get(f"/api/v1/jobs?{query}"),
        "stream": lambda: surfer.get(f"/live?topics=jobs&{query}"),
        "preview": lambda: surfer.get(f"/acts/jobs-cancel?{query}"),
        "dry run": lambda: surfer.client.post("/api/v1/acts/jobs-cancel?dry_run=1", **sent),
        "act": lambda: surfer.client.post("/api/v1/acts/jobs-cancel", **sent),
    }


@pytest.mark.parametrize(("which", "field", "sentence"), SECRET)
async def test_no_filter_tells_what_is_masked(
    mara: Surfer, kit: Kit, which: str, field: str, sentence: str
) -> None:
    """The answer is the same whether a job has the value or not, for whoever asks and however."""
    given = {"patient": 1, "diagnosis": "gout", "address": {"street": "Elm Row"}}
    kit.app.send("treat", given, run_after=timedelta(hours=1))
    card = {"order_id": 1, "card_token": "tok_4242", "note": JWT}
    kit.app.send("charge", card, run_after=timedelta(hours=1))
    for where, ask in _everywhere(mara, which, field).items():
        answer: httpx.Response = await asyncio.wait_for(ask(), 30)
        body = answer.text.replace("&#39;", "'").replace("A value that looks", "a value that looks")
        assert sentence in body, (where, body[-800:])
        assert answer.status_code == (200 if where == "preview" else 400), where
        if where == "preview":
            assert 'name="seal" value=""' in body  # what was not shown cannot be confirmed
    assert kit.sql("SELECT count(*) AS n FROM holdfast.work")[0]["n"] == 2
    assert kit.sql("SELECT FROM holdfast.audit") == []


def _searched(surfer: Surfer, error: str) -> dict[str, Callable[[], Any]]:
    said = quote(error)
    sent: dict[str, Any] = {"json": {"error": error}, "headers": TOKEN}
    post = surfer.client.post
    return {
        "page": lambda: surfer.get(f"/jobs?error={said}"),
        "api": lambda: surfer.get(f"/api/v1/jobs?error={said}"),
        "dead": lambda: surfer.get(f"/dead?error={said}"),
        "each": lambda: surfer.get(f"/dead?each=1&error={said}"),
        "dead api": lambda: surfer.get(f"/api/v1/dead?each=1&error={said}"),
        "preview": lambda: surfer.get(f"/acts/jobs-retry?error={said}"),
        "preview of dead": lambda: surfer.get(f"/acts/dead-redrive?error={said}"),
        "dry run": lambda: post("/api/v1/acts/jobs-retry?dry_run=1", **sent),
        "dry run of dead": lambda: post("/api/v1/acts/dead-discard?dry_run=1", **sent),
        "act": lambda: post("/api/v1/acts/jobs-retry", **sent),
        "act on dead": lambda: post("/api/v1/acts/dead-redrive", **sent),
    }


def _told(answer: httpx.Response) -> tuple[int, str]:
    """What an answer says, but for the last letter that was asked and what is another one on every page."""
    text = re.sub(r"(password(?:=|%3D|%253D)|hunter2secre)[htqx]", r"\1", answer.text)
    for changing in (
        r'name="csrf" value="[^"]*"',
        r'name="seal" value="[^"]*"',
        r"(?<=[0-9a-f]{16}\.)[0-9]{10}",  # when a page was sent, in the mark of its lines
        r"[0-9:]+ UTC",
        r"[0-9.]+ m?s\b",
    ):
        text = re.sub(changing, "", text)
    return answer.status_code, text


async def test_no_search_tells_what_is_masked_in_an_error(mara: Surfer, kit: Kit, shop: Shop) -> None:
    """What begins like the secret is answered as what is nowhere, letter by letter."""
    for right, wrong in (("password=h", "password=q"), ("hunter2secret", "hunter2secrex")):
        asked = zip(_searched(mara, right).items(), _searched(mara, wrong).values(), strict=True)
        for (where, one), other in asked:
            assert _told(await one()) == _told(await other()), where
    assert (kit.job(shop.dead)["status"], kit.sql("SELECT FROM holdfast.audit")) == ("dead_letter", [])
    for where, ask in _searched(mara, "PSP.example did").items():
        answer = await ask()
        assert answer.status_code == 200, where
        if where in ("page", "api", "each", "dead api"):
            assert str(shop.dead) in answer.text, where
        if where.startswith("dry run"):
            assert answer.json()["preview"]["count"] == 1
        if where == "act":  # and nothing is left for the act on dead letters
            assert answer.json()["done"]["results"] == {"redriven": 1}


async def test_no_search_tells_what_a_task_masks(mara: Surfer, kit: Kit) -> None:
    kit.app.send("treat", {"patient": 1, "diagnosis": "gout", "address": {}}, run_after=timedelta(hours=1))
    kit.sql("UPDATE holdfast.work SET last_error = 'ValueError: diagnosis=''gout'' in Ayr'")
    for query in ("error=gout", "task=treat&error=gout", "error=%27g", "task=charge&error=gout"):
        assert await _ids(mara, query) == [], query
    assert len(await _ids(mara, "error=Ayr")) == 1


async def test_the_stream_of_a_list_searches_as_it_is_shown(
    mara: Surfer, dashboard: Dashboard, shop: Shop
) -> None:
    found = {}
    for error in ("password=h", "psp.example"):
        call = SimpleNamespace(site=dashboard.site, who=Identity("mara", "operator"))
        watch = watched_list(call, {"error": error})  # type: ignore[arg-type]
        await watch.values(dashboard.site)
        found[error] = len(watch._since.lines or {})
    assert found == {"password=h": 0, "psp.example": 1}


async def test_no_entry_of_the_audit_is_found_by_a_secret(mara: Surfer, kit: Kit) -> None:
    kit.app.send("send", {"order_id": 1}, tags=[JWT], run_after=timedelta(hours=1))
    which = {"tag": JWT}
    answer = await mara.client.post("/api/v1/acts/jobs-cancel", json=which, headers=TOKEN)
    assert answer.status_code == 200, answer.text
    for path in ("/audit", "/api/v1/audit"):
        answer = await mara.get(f"{path}?target={JWT}")
        assert (answer.status_code, "no entry is found by it" in answer.text) == (400, True)


async def test_what_workers_mask_is_in_no_filter_of_a_dashboard_without_the_code(kit: Kit) -> None:
    kit.app.send("treat", {"patient": 1, "diagnosis": "gout", "address": {}}, run_after=timedelta(hours=1))
    await kit.app.run_worker(until_idle=True)
    bare = Holdfast(kit.database.dsn)
    made = made_for(bare)
    surfer = Surfer(made)
    for where in ("/live?topics=jobs&", "/jobs?", "/api/v1/jobs?"):
        answer = await asyncio.wait_for(surfer.get(f"{where}task=treat&field=diagnosis=gout"), 30)
        assert answer.status_code == 400, where
    await made.site.close()
    await bare.database.aclose()
    bare.close()


async def test_a_viewer_searches_by_no_field_of_a_payload(
    surfer_of: Callable[..., Surfer], shop: Shop
) -> None:
    viewer = surfer_of("viewer")
    for where, ask in _everywhere(viewer, "task=send", "order_id=3").items():
        answer = await asyncio.wait_for(ask(), 30)
        assert (where, answer.status_code) == (where, 403), answer.text
        assert "needs the role operator" in answer.text
    page = await viewer.page("/jobs?worker=w&min_attempts=1")  # who ran it, and how often, is for everybody
    assert [f'name="{name}"' in page for name in ("worker", "min_attempts", "field")] == [True, True, False]


async def test_names_and_values_that_would_be_markup_or_sql_are_text(mara: Surfer, shop: Shop) -> None:
    evil = "<script>alert(1)</script>' OR 1=1 --"
    for query in (
        f"worker={quote(evil)}",
        f"task=send&field={quote(evil)}",
        f"task=send&field=a={quote(evil)}",
    ):
        assert "<script>alert" not in await mara.page(f"/jobs?{query}")
        assert await _ids(mara, query) == []
    deep = ".".join(["a"] * 3000)
    answer = await mara.get(f"/api/v1/jobs?task=send&field={deep}=1")
    assert (answer.status_code, json.loads(answer.text).get("data", {}).get("jobs")) == (200, [])
