"""The dashboard inside another app: under any path, beside its own pages, whether or not a lifespan is passed on."""

import re
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from tests.django_app.setting_up import set_up
from tests.web.conftest import Shop
from tests.web.surfing import Surfer, made_for

from holdfast.testing import Kit
from holdfast.web.application import Dashboard

LINK = re.compile(r'(?:href|src|action)="([^"#][^"]*)"')


async def _ours(_: Any) -> PlainTextResponse:
    return PlainTextResponse("ours")


def in_fastapi(made: Dashboard) -> Any:
    api = FastAPI()
    api.mount("/ops", made)
    api.get("/ours")(lambda: "ours")
    return api


def in_starlette(made: Dashboard) -> Any:
    return Starlette(routes=[Route("/ours", _ours), Mount("/ops", made)])


def in_starlette_deeper(made: Dashboard) -> Any:
    return Starlette(routes=[Route("/ours", _ours), Mount("/a", routes=[Mount("/ops", made)])])


def in_django(made: Dashboard) -> Any:
    from django.conf import settings
    from django.core.asgi import get_asgi_application
    from django.http import HttpRequest, HttpResponse
    from django.urls import clear_url_caches, path

    set_up()
    settings.ALLOWED_HOSTS, settings.ROOT_URLCONF, settings.SECRET_KEY = ["*"], __name__, "tests"
    clear_url_caches()

    def ours(_: HttpRequest) -> HttpResponse:
        return HttpResponse("ours")

    globals()["urlpatterns"] = [path("ours", ours)]
    around: Any = get_asgi_application()
    return Starlette(routes=[Mount("/ops", made), Mount("/", around)])


PLACES = {
    "fastapi": (in_fastapi, "/ops"),
    "starlette": (in_starlette, "/ops"),
    "deeper": (in_starlette_deeper, "/a/ops"),
    "django": (in_django, "/ops"),
}


@pytest.mark.parametrize("where", PLACES)
async def test_every_link_stays_under_the_path(kit: Kit, shop: Shop, where: str) -> None:
    make, prefix = PLACES[where]
    made = made_for(kit.app)
    surfer = Surfer(make(made))
    assert "ours" in (await surfer.get("/ours")).text
    for path in ("/", "/jobs", f"/jobs/{shop.dead}", "/dead", "/queues"):
        text = await surfer.page(f"{prefix}{path}")
        links = [link for link in LINK.findall(text) if not link.startswith("data:")]
        assert len(links) > 20
        assert [link for link in links if not link.startswith(f"{prefix}/")] == [], path
    sheet = next(link for link in LINK.findall(text) if link.endswith(".css"))
    assert (await surfer.get(sheet)).headers["content-type"].startswith("text/css")
    await made.site.close()


async def test_an_act_under_a_path_comes_back_there(kit: Kit, shop: Shop) -> None:
    made = made_for(kit.app)
    surfer = Surfer(in_fastapi(made))
    answer = await surfer.confirm(f"/ops/acts/jobs-retry?ids={shop.waiting}&back=jobs")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ops/jobs")
    assert all("Path=/ops" in cookie for cookie in answer.headers.get_list("set-cookie"))
    await made.site.close()


async def test_the_end_of_a_lifespan_closes_what_was_opened(kit: Kit) -> None:
    made = made_for(kit.app)
    async with made._guard._app._app.router.lifespan_context(made._guard._app._app):  # type: ignore[attr-defined]
        await Surfer(made).page("/")
        assert made.site._reading is not None
    assert made.site._reading is None
    await Surfer(made).page("/settings")  # and it opens again
    await made.site.close()
