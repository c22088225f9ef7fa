"""The lab's pages: who comes in, what a button does, what a stream says."""

import asyncio
import json
import re
from collections.abc import AsyncIterator

import httpx
import pytest
from tests.conftest import await_until

from holdfast.lab.hall import Hall
from holdfast.lab.place import LabHost
from holdfast.lab.site import CSRF, LOOK, SESSION, LabApp, lab_app
from holdfast.web import guard, identity
from holdfast.web.identity import Identity, OneTimeUrl

BASE = "http://127.0.0.1"


@pytest.fixture
async def lab(place: LabHost) -> AsyncIterator[LabApp]:
    made = lab_app(Hall(place), OneTimeUrl(Identity("mara", "admin"), cookie=SESSION))
    yield made
    await asyncio.to_thread(made.site.hall.close)


@pytest.fixture
async def mara(lab: LabApp) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=lab), base_url=BASE) as client:
        login = lab.site.login
        assert login is not None
        assert (await client.get(f"/login?token={login.token}")).status_code == 303
        await open_scene(client, 1)
        yield client


async def open_scene(client: httpx.AsyncClient, number: int) -> None:
    found = re.search(r'name="csrf" value="([^"]+)"', (await client.get(f"/scene/{number}")).text)
    assert found is not None
    form = {"csrf": found[1], "what": "enter"}
    answer = await client.post(f"/scene/{number}/act", data=form, headers={"origin": BASE})
    assert (answer.status_code, answer.headers["location"]) == (303, f"/scene/{number}")


async def test_nobody_comes_in_without_the_address(lab: LabApp, mara: httpx.AsyncClient) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=lab), base_url=BASE) as stranger:
        for path in ("/", "/scene/1", "/scene/1/live", "/scene/1/past?at=0", "/find?q="):
            assert (await stranger.get(path)).status_code == 401
        assert (await stranger.post("/scene/1/act", data={"what": "pay"})).status_code == 401
    assert set(mara.cookies) == {SESSION, CSRF}
    assert not set(mara.cookies) & {identity.SESSION, guard.CSRF}, "a dashboard on another port keeps its own"


async def test_a_page_that_is_looked_at_opens_and_closes_nothing(
    lab: LabApp, mara: httpx.AsyncClient
) -> None:
    stage = lab.site.hall.stage
    assert stage is not None
    page = (await mara.get("/scene/2")).text
    assert "Open this scene" in page
    assert "It ends scene 1, One worker, one receipt, and its workers." in page
    await mara.get("/scene/2/past?at=0")
    assert lab.site.hall.stage is stage
    assert (await mara.get("/")).headers["location"] == "/scene/1"
    await open_scene(mara, 2)
    assert lab.site.hall.stage is not None
    assert lab.site.hall.stage.scene.number == 2
    assert (await mara.get("/")).headers["location"] == "/scene/2"


async def test_a_button_acts_and_the_stream_shows_it(lab: LabApp, mara: httpx.AsyncClient) -> None:
    page = (await mara.get("/scene/1")).text
    assert "One worker, one receipt" in page
    assert "<script>" not in page
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found is not None
    form = {"csrf": found[1], "what": "pay"}
    assert (await mara.post("/scene/1/act", data=form)).status_code == 403  # not sent from a page of ours
    assert (
        await mara.post("/scene/1/act", data={"what": "pay"}, headers={"origin": BASE})
    ).status_code == 403
    assert lab.site.hall.stage is not None
    assert lab.site.hall.stage.number("SELECT count(*) FROM orders") == 0
    answer = await mara.post("/scene/1/act", data=form, headers={"origin": BASE, "x-fragment": "1"})
    assert answer.status_code == 204
    seen = json.loads(await asyncio.to_thread(lab.site.hall.look, 1))
    assert dict(seen["counters"])["orders paid"] == 1
    assert [t["name"] for t in seen["tables"]] == ["holdfast.work", "holdfast.archive", "orders", "mails"]
    assert (
        seen["tape"][-1][1:3] == ["api", "pays order 1 and enqueues its receipt, one commit"]
        or seen["workers"]
    )
    past = (await mara.get("/scene/1/past?at=0")).json()
    assert past["at"] <= seen["at"]


async def test_what_a_page_is_refused(mara: httpx.AsyncClient) -> None:
    found = re.search(r'name="csrf" value="([^"]+)"', (await mara.get("/scene/1")).text)
    assert found is not None

    async def said(**fields: str) -> str:
        answer = await mara.post("/scene/1/act", data={"csrf": found[1], **fields}, headers={"origin": BASE})
        assert answer.status_code in (400, 404)
        lead = re.search(r'class="lead">([^<]+)<', answer.text)
        assert lead is not None
        return lead[1]

    assert await said(what="dance") == (
        "There is no act &#39;dance&#39; in scene 1 (known: pay, step, roll_back, mail_server)."
    )
    assert await said(what="knob", name="speed", value="1") == (
        "There is no knob &#39;speed&#39; in scene 1 (known: )."
    )
    assert await said(what="knob", name="speed", value="fast") == "A knob takes a number, not &#39;fast&#39;."
    assert (await mara.get("/scene/99")).status_code == 404
    assert (await mara.get("/scene/1/past?at=then")).status_code == 400
    assert (await mara.get("/nowhere")).status_code == 404


async def test_one_look_serves_all_tabs(lab: LabApp, mara: httpx.AsyncClient) -> None:
    await mara.get("/scene/1")
    looks = lab.site.snapshots

    async def look() -> str:
        return await looks.get("scene:1", LOOK, lambda: asyncio.to_thread(lab.site.hall.look, 1))

    before = looks.looks
    answers = await asyncio.gather(*(look() for _ in range(50)))
    assert len(set(answers)) == 1
    assert looks.looks - before <= 2


async def test_a_play_can_be_watched(lab: LabApp, mara: httpx.AsyncClient) -> None:
    await mara.get("/scene/1")
    lab.site.hall.play(1)
    await await_until(lambda: not lab.site.hall.is_playing, "the script is done", 60)
    assert lab.site.hall.trouble == ""
    assert lab.site.hall.stage is not None
    assert lab.site.hall.stage.holds()
