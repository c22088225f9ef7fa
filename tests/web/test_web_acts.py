"""Acts: shown first, confirmed as shown, done by the operator's verbs, and in the audit under the name of who asked."""

import base64
import html
import json
import re
from urllib.parse import urlencode
from uuid import UUID

import pytest
from tests.web.conftest import Shop
from tests.web.surfing import Surfer, fields, made_for
from tests.web.test_access import TOKEN

from holdfast import Holdfast
from holdfast.errors import DatabaseError
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure
from holdfast.pages import Act, ActResult, Given, Pages, Preview
from holdfast.shape import Shape
from holdfast.testing import Kit
from holdfast.web import BearerTokens, Identity, hashed, holdfast_web
from holdfast.web.application import Dashboard


def state(kit: Kit, job: UUID) -> str:
    return Operator(kit.database, "test").find_job(job).job.state


def last_audit(kit: Kit) -> tuple[str, str, int]:
    line = Operator(kit.database, "test").list_audit(limit=1).entries[0]
    return line.actor, line.action, line.count


async def test_a_preview_changes_nothing_and_its_confirmation_does(
    mara: Surfer, kit: Kit, shop: Shop
) -> None:
    path = f"/acts/dead-redrive?ids={shop.dead}"
    text = await mara.page(path)
    assert "1 job would be put back to work: 1 dead letter." in text
    assert f"holdfast dead redrive {shop.dead}" in text
    assert state(kit, shop.dead) == "dead_letter"
    answer = await mara.confirm(path)
    assert answer.status_code == 303, answer.text
    assert state(kit, shop.dead) == "pending"
    assert last_audit(kit) == ("mara", "dead redrive", 1)
    assert Operator(kit.database, "test").list_audit(limit=1).entries[0].surface == "web"


async def test_what_was_done_is_said_on_the_next_page_once(mara: Surfer, shop: Shop) -> None:
    await mara.confirm(f"/acts/jobs-retry?ids={shop.waiting}&back=jobs")
    text = await mara.page("/jobs")
    assert "1 job retried." in text
    assert "1 job retried." not in await mara.page("/jobs")


@pytest.mark.parametrize("changed", ["seal", "ids"])
async def test_what_was_not_shown_cannot_be_confirmed(
    mara: Surfer, kit: Kit, shop: Shop, changed: str
) -> None:
    form = fields(await mara.page(f"/acts/jobs-cancel?ids={shop.waiting}"))
    form[changed] = "" if changed == "seal" else f"{shop.waiting} {shop.blocked}"
    answer = await mara.post("/acts/jobs-cancel", form)
    assert answer.status_code == 409
    assert "his was not shown before" in answer.text
    assert state(kit, shop.waiting) == "scheduled"


async def test_a_preview_is_too_old_after_a_while(
    mara: Surfer, kit: Kit, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = fields(await mara.page(f"/acts/jobs-cancel?ids={shop.waiting}"))
    monkeypatch.setattr("holdfast.web.seals.GOOD_FOR", -1)
    assert (await mara.post("/acts/jobs-cancel", form)).status_code == 409
    assert state(kit, shop.waiting) == "scheduled"


async def test_what_deletes_wants_the_number_typed(mara: Surfer, kit: Kit, shop: Shop) -> None:
    path = f"/acts/dead-discard?ids={shop.dead}"
    refused = await mara.confirm(path, typed="2")
    assert (refused.status_code, "type 1 to confirm" in refused.text.lower()) == (409, True)
    assert state(kit, shop.dead) == "dead_letter"
    assert (await mara.confirm(path, typed="1")).status_code == 303
    assert last_audit(kit) == ("mara", "dead discard", 1)


async def test_a_preview_that_failed_cannot_be_confirmed(
    mara: Surfer, kit: Kit, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def too_slow(*_: object) -> None:
        raise DatabaseError("canceling statement due to statement timeout")

    path = "/acts/dead-discard?task=charge"
    monkeypatch.setattr("holdfast.web.acting.preview", too_slow)
    text = await mara.page(path)
    assert "statement timeout" in text
    assert '<button class="btn danger">' not in text
    monkeypatch.undo()
    answer = await mara.post("/acts/dead-discard", fields(text))
    assert answer.status_code == 409
    assert state(kit, shop.dead) == "dead_letter"


async def test_more_than_was_shown_is_not_done(mara: Surfer, kit: Kit, shop: Shop) -> None:
    path = "/acts/dead-discard?task=charge"
    form = fields(await mara.page(path))
    kit.app.send("charge", {"order_id": 2, "card_token": "t"})
    await kit.app.run_worker(until_idle=True)
    refused = await mara.post("/acts/dead-discard", {**form, "typed": "1"})
    assert (refused.status_code, "2 fit now, 1 were shown" in refused.text) == (409, True)
    assert state(kit, shop.dead) == "dead_letter"
    assert (await mara.confirm(path, typed="2", reason="of a test")).status_code == 303


async def test_a_number_that_is_at_least_is_typed_too(
    mara: Surfer, kit: Kit, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_least(*_: object) -> Preview:
        return Preview("3 jobs or more", 3, capped=True)

    monkeypatch.setattr("holdfast.web.acting.preview", at_least)
    path = "/acts/dead-redrive?task=charge"
    assert (await mara.confirm(path)).status_code == 409
    form = fields(await mara.page(path))
    at, count, _, rest = form["seal"].split(".", 3)
    for seal in (f"{at}.{count}.0.{rest}", f"{at}..0.{rest}", f"{at}.2.1.{rest}"):
        assert (
            await mara.post("/acts/dead-redrive", {**form, "seal": seal, "typed": "3"})
        ).status_code == 409
    assert state(kit, shop.dead) == "dead_letter"
    assert (await mara.confirm(path, typed="3")).status_code == 303


async def test_what_was_confirmed_is_done_once(mara: Surfer, kit: Kit, shop: Shop) -> None:
    form = fields(await mara.page(f"/acts/jobs-edit?id={shop.waiting}"))
    assert (await mara.post("/acts/jobs-edit", {**form, "priority": "3"})).status_code == 303
    again = await mara.post("/acts/jobs-edit", {**form, "priority": "9"})
    assert (again.status_code, "confirmed before" in again.text) == (409, True)
    assert Operator(kit.database, "test").find_job(shop.waiting).job.priority == 3
    assert (await mara.confirm(f"/acts/jobs-edit?id={shop.waiting}", priority="9")).status_code == 303


async def test_many_that_match_are_done_at_a_rate(mara: Surfer, kit: Kit) -> None:
    for n in range(120):
        kit.app.send("charge", {"order_id": n, "card_token": "t"})
    await kit.app.run_worker(until_idle=True)
    path = "/acts/dead-redrive?task=charge"
    text = await mara.page(path)
    assert "120 jobs would be put back to work" in text
    assert (await mara.confirm(path, rate="10/s")).status_code == 409  # more than 100: the number is typed
    answer = await mara.confirm(path, rate="10/s", typed="120")
    assert answer.status_code == 303, answer.text
    jobs = Operator(kit.database, "test").list_jobs(limit=200).jobs
    due = sorted(job.available_at for job in jobs if job.task == "charge")
    assert 11 < (due[-1] - due[0]).total_seconds() < 13


@pytest.mark.parametrize(
    ("act", "given", "told"),
    [
        ("queue-pause", {"queue": "mail"}, "queue pause"),
        ("queue-resume", {"queue": "mail"}, "queue resume"),
        ("task-pause", {"task": "send"}, "task pause"),
    ],
)
async def test_what_can_be_undone_is_done_at_once(
    mara: Surfer, kit: Kit, act: str, given: dict[str, str], told: str
) -> None:
    if act == "queue-resume":
        Operator(kit.database, "test").pause_queue("mail")
    csrf = (await mara.page("/queues")).split('name="csrf" value="')[1].split('"')[0]
    answer = await mara.post(f"/acts/{act}", {**given, "csrf": csrf, "back": "queues"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/queues")
    assert last_audit(kit)[:2] == ("mara", told)


async def test_a_blocked_key_is_released(mara: Surfer, kit: Kit, shop: Shop) -> None:
    answer = await mara.confirm("/acts/keys-release?queue=parcels&key=order:9182", how="skip")
    assert answer.status_code == 303, answer.text
    assert state(kit, shop.blocked) == "dead_letter"


async def test_a_limit_and_a_job_are_changed(mara: Surfer, kit: Kit, shop: Shop) -> None:
    answer = await mara.confirm("/acts/queue-set?queue=mail", rule="concurrency", value="7")
    assert answer.status_code == 303, answer.text
    assert Operator(kit.database, "test").show_rules("mail").rules["concurrency"] == 7
    answer = await mara.confirm(
        f"/acts/jobs-edit?id={shop.waiting}", priority="9", arguments='{"order_id": 4}'
    )
    assert answer.status_code == 303, answer.text
    job = Operator(kit.database, "test").find_job(shop.waiting).job
    assert (job.priority, job.payload) == (9, {"order_id": 4})


async def test_arguments_that_the_handler_does_not_take_are_refused(
    mara: Surfer, kit: Kit, shop: Shop
) -> None:
    path = f"/acts/jobs-edit?id={shop.waiting}"
    answer = await mara.confirm(path, arguments='{"nonsense": 4}')
    assert (answer.status_code, "nonsense" in answer.text) == (400, True)
    assert Operator(kit.database, "test").find_job(shop.waiting).job.payload == {"order_id": 3}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/acts/queue-pause?queue=mail&nonsense=1", "does not know 'nonsense'"),
        ("/acts/queue-pause", "needs queue"),
        ("/acts/jobs-retry?ids=nonsense", "is not the id of a job"),
        ("/acts/dead-redrive", "say which dead letters"),
        ("/acts/jobs-discard?queue=mail", "say which states"),
        ("/acts/keys-release?queue=mail&key=x", "is not ordered by key"),
    ],
)
async def test_a_slip_is_said(mara: Surfer, path: str, said: str) -> None:
    assert said in (await mara.get(path)).text.replace("&#39;", "'")


@pytest.mark.parametrize("back", ["//evil.example", "https://evil.example", "/\\evil.example", "\tevil"])
async def test_nobody_is_sent_to_another_site(mara: Surfer, back: str) -> None:
    csrf = (await mara.page("/queues")).split('name="csrf" value="')[1].split('"')[0]
    answer = await mara.post("/acts/queue-pause", {"queue": "mail", "csrf": csrf, "back": back})
    where = answer.headers["location"]
    assert where.startswith("/")
    assert not where.startswith(("//", "/\\"))


@pytest.mark.parametrize("back", ["/evil.example", "//evil.example", "/\\evil.example"])
async def test_a_link_back_stays_on_this_site(mara: Surfer, back: str) -> None:
    text = await mara.page("/acts/queue-set?" + urlencode({"queue": "mail", "back": back}))
    (where,) = re.findall(r'data-close href="([^"]*)">Leave it', text)
    assert where.startswith("/")
    assert not where.startswith(("//", "/\\"))


async def test_a_link_onwards_stays_on_this_site(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an act whose secret is shown once."""
    monkeypatch.setattr(type(kit.app), "_shapes", (Shape("secrets", pages=f"{__name__}:SECRETS"),))
    surfer = Surfer(made_for(kit.app))
    csrf = (await surfer.page("/queues")).split('name="csrf" value="')[1].split('"')[0]
    answer = await surfer.post("/acts/queue-tell", {"csrf": csrf, "back": "/evil.example"})
    assert 'href="/evil.example">Go on' in answer.text


def _tell(_: Given) -> Procedure[ActResult]:
    yield from ()
    return ActResult("It is told.", secret="whsec_1")


SECRETS = Pages((), (Act("queue tell", "Tell", _tell, (), lambda _: ("queue", "tell"), at_once=True),))


async def test_what_is_said_can_only_be_said_by_us(mara: Surfer) -> None:
    text = base64.urlsafe_b64encode(b'["Evil", null]').decode()
    mara.client.cookies.set("holdfast_said", f"{text}.0000")
    assert "Evil" not in await mara.page("/settings")


# Programs ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def program(kit: Kit) -> Surfer:
    made: Dashboard = holdfast_web(
        kit.app, authorize=BearerTokens({hashed(TOKEN): Identity("ci", "operator")})
    )
    surfer = Surfer(made)
    surfer.client.headers["authorization"] = f"Bearer {TOKEN}"
    return surfer


async def test_a_program_looks_first_and_acts_then(program: Surfer, kit: Kit, shop: Shop) -> None:
    path = "/api/v1/acts/dead-redrive"
    dry = (await program.client.post(f"{path}?dry_run=1", json={"ids": [str(shop.dead)]})).json()
    assert (dry["dry_run"], dry["preview"]["count"]) == (True, 1)
    assert state(kit, shop.dead) == "dead_letter"
    done = (await program.client.post(path, json={"ids": [str(shop.dead)]})).json()
    assert done["done"]["count"] == 1
    assert last_audit(kit) == ("ci", "dead redrive", 1)
    assert Operator(kit.database, "test").list_audit(limit=1).entries[0].surface == "api"


async def test_a_program_is_told_why_not(program: Surfer, shop: Shop) -> None:
    answer = await program.client.post("/api/v1/acts/dead-discard", json={"ids": [str(shop.dead)]})
    assert (answer.status_code, answer.headers["content-type"]) == (403, "application/problem+json")
    answer = await program.client.post("/api/v1/acts/jobs-cancel", json={"ids": [str(shop.done)]})
    problem = answer.json()
    assert (answer.status_code, problem["reason"]) == (400, "nothing_done")
    for body in (b"{", b"[]", b'{"nonsense": 1}'):
        answer = await program.client.post("/api/v1/acts/jobs-cancel", content=body)
        assert answer.status_code == 400, body


@pytest.mark.parametrize(
    ("act", "body"),
    [
        ("dead-redrive", {"ids": []}),
        ("dead-redrive", {"ids": ["", ""]}),
        ("dead-redrive", {"ids": [","]}),
        ("dead-redrive", {"ids": "", "all": True}),
        ("dead-redrive", {"all": 0}),
        ("dead-redrive", {"all": "false"}),
        ("dead-redrive", {"all": False}),
        ("dead-redrive", {"all": True, "ids": ["0199c0de-7a31-7c41-9182-5be0a31ec41f"]}),
        ("jobs-retry", {"ids": [], "state": "scheduled"}),
        ("jobs-retry", {"ids": [","], "state": "scheduled"}),
        ("workers-drain", {"all": 0, "ids": "w1"}),
        ("workers-drain", {"all": True, "ids": "w1"}),
        ("workers-drain", {"ids": [","], "all": True}),
    ],
)
async def test_a_slip_never_means_all(
    program: Surfer, kit: Kit, shop: Shop, act: str, body: dict[str, object]
) -> None:
    for path in (f"/api/v1/acts/{act}?dry_run=1", f"/api/v1/acts/{act}"):
        answer = await program.client.post(path, json=body)
        assert answer.status_code == 400, answer.text
    assert (state(kit, shop.dead), state(kit, shop.waiting)) == ("dead_letter", "scheduled")


async def test_all_is_meant_when_it_is_said(program: Surfer, shop: Shop) -> None:
    for body in ({"all": True}, {"all": "true"}, {"all": 1, "ids": None}):
        answer = await program.client.post("/api/v1/acts/dead-redrive?dry_run=1", json=body)
        assert answer.json()["preview"]["count"] == 1, answer.text


@pytest.mark.parametrize("said", ["1", "true", "True", "YES", "on"])
async def test_a_dry_run_is_one_however_it_is_said(program: Surfer, kit: Kit, shop: Shop, said: str) -> None:
    path = f"/api/v1/acts/dead-redrive?dry_run={said}"
    answer = await program.client.post(path, json={"ids": [str(shop.dead)]})
    assert answer.json()["dry_run"] is True
    assert state(kit, shop.dead) == "dead_letter"


@pytest.mark.parametrize("query", ["dry_run=maybe", "dry_run=", "dryrun=1", "dry_run=1&dry_run=0"])
async def test_a_dry_run_that_is_not_understood_is_refused(
    program: Surfer, kit: Kit, shop: Shop, query: str
) -> None:
    answer = await program.client.post(f"/api/v1/acts/dead-redrive?{query}", json={"ids": [str(shop.dead)]})
    assert (answer.status_code, "dry_run" in answer.text) == (400, True)
    assert state(kit, shop.dead) == "dead_letter"


async def test_no_dry_run_acts(program: Surfer, kit: Kit, shop: Shop) -> None:
    path = "/api/v1/acts/dead-redrive?dry_run=False"
    answer = await program.client.post(path, json={"ids": [str(shop.dead)]})
    assert (answer.json()["dry_run"], state(kit, shop.dead)) == (False, "pending")


def test_every_act_is_a_command(app: Holdfast) -> None:
    """What a button does has a command of the same name. Views are of the dashboard, and a command line masks nothing."""
    from tests.surface.commands import every_command

    commands = every_command()
    own = {"view save", "view share", "view delete", "view unshare", "jobs reveal"}
    for name in made_for(app).site.acts.keys() - own:
        assert name.removesuffix(" fix") in commands, name


async def test_the_api_is_described(program: Surfer, shop: Shop) -> None:
    described = (await program.get("/api/v1/openapi.json")).json()
    assert described["openapi"] == "3.1.0"
    plain = [path for path in described["paths"] if "{" not in path and "acts/" not in path]
    assert len(plain) > 12
    for path in plain:
        answer = await program.get(path)
        assert answer.status_code == 200, (path, answer.text[:300])
        assert json.loads(answer.text).keys() <= {"data", "next", "cut", "in_use", "about"}


async def test_a_value_of_another_form_than_is_described_is_refused(program: Surfer, shop: Shop) -> None:
    for body in ({"older_than": False}, {"task": ["send"]}, {"ids": [1]}, {"ids": 7}, {"rate": {"a": 1}}):
        answer = await program.client.post("/api/v1/acts/dead-redrive?dry_run=1", json={"all": True, **body})
        assert (answer.status_code, "openapi.json" in answer.text) == (400, True), body


async def test_the_description_itself_is_not_masked(program: Surfer) -> None:
    described = (await program.get("/api/v1/openapi.json")).json()
    assert described["components"]["securitySchemes"] == {"bearer": {"type": "http", "scheme": "bearer"}}


@pytest.mark.parametrize("path", ["workflows?tag=%00x", "jobs?task=%00", "queues/%00", "acts/queue-pause"])
async def test_what_no_row_can_hold_is_refused(program: Surfer, path: str) -> None:
    if path.startswith("acts"):
        answer = await program.client.post(f"/api/v1/{path}", json={"queue": "a\0b"})
    else:
        answer = await program.get(f"/api/v1/{path}")
    assert (answer.status_code, "is not valid text" in answer.json()["detail"]) == (400, True)


async def test_what_no_route_takes_is_refused_in_the_same_words(program: Surfer) -> None:
    lost = await program.get("/api/v1/webhooks/a%0Ab%0A")
    assert (lost.status_code, lost.headers["content-type"]) == (404, "application/problem+json")
    odd = await program.client.put("/api/v1/jobs")
    assert (odd.status_code, odd.headers["content-type"]) == (405, "application/problem+json")
    assert "GET" in odd.headers["allow"]


async def test_whoever_deletes_a_thing_on_its_page_goes_on_where_something_is(
    mara: Surfer, shop: Shop
) -> None:
    for act, job, list_ in (("jobs-discard", shop.waiting, "jobs"), ("dead-discard", shop.dead, "jobs")):
        answer = await mara.confirm(f"/acts/{act}?ids={job}&back=jobs/{job}", typed="1")
        assert (answer.status_code, answer.headers["location"]) == (303, f"/{list_}"), answer.text
        assert "1 job discarded" in await mara.page(f"/{list_}")


async def test_every_button_leads_to_its_act(mara: Surfer, shop: Shop) -> None:
    """Also one that is about nothing yet."""
    for path in ("/queues", "/jobs", "/dead", f"/jobs/{shop.waiting}", "/workers"):
        text = await mara.page(path)
        for link in set(re.findall(r'data-dialog href="([^"]+)"', text)):
            assert 'class="confirm-form"' in await mara.page(html.unescape(link)), link
    assert "/acts/queue-create?back=queues" in await mara.page("/queues")
