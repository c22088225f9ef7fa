"""The lab in a browser: a page for each scene, its acts, a stream of what is seen. It is mounted nowhere."""

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.lab.hall import Hall
from holdfast.lab.scenes import all_scenes, scene_of
from holdfast.pages import Page
from holdfast.web.assets import add_assets, serve_asset
from holdfast.web.calls import Call, Refusal, needs
from holdfast.web.drawing import add_templates
from holdfast.web.guard import LOOPBACK, Guard
from holdfast.web.identity import OneTimeUrl
from holdfast.web.packing import Packed
from holdfast.web.signing_in import by_address
from holdfast.web.site import Site

HERE = Path(__file__).parent
LOOK = 0.2  # seconds
LASTS = 600.0  # of one stream: the browser asks again then
SESSION, CSRF = "holdfast_lab_session", "holdfast_lab_csrf"  # a dashboard on another port has cookies too


class LabSite(Site):
    """The parts that the shared frame of the pages requires: a name, and scenes in place of a menu."""

    def __init__(self, hall: Hall, login: OneTimeUrl) -> None:
        self.scenes = all_scenes()
        super().__init__(self.scenes[0].app, login, title="lab", login=login)
        self.csrf.cookie = CSRF
        self.hall = hall

    def menu(self) -> Mapping[str, Sequence[Page]]:
        return {"Learn": [Page(f"scene/{s.number}", s.short, _no_page, icon="lab") for s in self.scenes]}


def _no_page(_: object) -> Any:
    raise NotImplementedError  # scenes are drawn here, not by blocks


class LabApp:
    def __init__(self, site: LabSite) -> None:
        self.site = site
        inside = Starlette(routes=routes(site), lifespan=self._lifespan)
        self._guard = Guard(Packed(inside), LOOPBACK)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        await self.site.hall.open(self.site.scenes[0].number)
        yield
        await asyncio.to_thread(self.site.hall.close)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("root_path"):
            raise ConfigurationError(
                f"the lab was mounted at {scope['root_path']!r}. It kills workers, so it stands by itself: holdfast lab"
            )
        await self._guard(scope, receive, send)


def lab_app(hall: Hall, login: OneTimeUrl) -> LabApp:
    add_templates(HERE / "templates")
    add_assets(HERE / "assets")
    return LabApp(LabSite(hall, login))


def routes(site: LabSite) -> list[Route]:
    looks, acts = needs("viewer", site), needs("operator", site)

    def of_scene(answer: Callable[[LabSite, Call, int], Awaitable[Response]]) -> Any:
        async def called(call: Call) -> Response:
            return await answer(site, call, int(call.request.path_params["number"]))

        return called

    one = "/scene/{number:int}"
    return [
        Route("/login", functools.partial(by_address, site), methods=["GET"]),
        Route("/assets/{digest}/{name}", serve_asset, methods=["GET"]),
        Route("/find", looks(functools.partial(_find, site)), methods=["GET"]),
        Route("/", looks(functools.partial(_first, site)), methods=["GET"]),
        Route(one, looks(of_scene(_show)), methods=["GET"]),
        Route(f"{one}/live", looks(of_scene(_stream)), methods=["GET"]),
        Route(f"{one}/past", looks(of_scene(_past)), methods=["GET"]),
        Route(f"{one}/act", acts(of_scene(_act)), methods=["POST"]),
        Route("/{rest:path}", looks(_nothing), methods=["GET"]),
    ]


async def _nothing(call: Call) -> Response:
    raise Refusal(HTTPStatus.NOT_FOUND, "there is no such page")


async def _first(site: LabSite, call: Call) -> Response:
    """The scene that is open, or the first."""
    stage = site.hall.stage
    number = site.scenes[0].number if stage is None else stage.scene.number
    return RedirectResponse(f"/scene/{number}", HTTPStatus.SEE_OTHER)


async def _find(site: LabSite, call: Call) -> Response:
    word = call.request.query_params.get("q", "").strip().lower()[:200]
    found = [
        {"text": s.title, "kind": "scene", "href": f"/scene/{s.number}"}
        for s in site.scenes
        if word in s.title.lower()
    ]
    if call.request.headers.get("x-fragment") == "1":
        return call.json({"found": found})
    if not found:
        raise Refusal(HTTPStatus.NOT_FOUND, f"no scene is called {word!r}")
    return RedirectResponse(found[0]["href"], HTTPStatus.SEE_OTHER)


async def _show(site: LabSite, call: Call, number: int) -> Response:
    """A page opens no scene: viewing ends nobody else's scene."""
    scene, stage = scene_of(number), site.hall.stage
    is_open = stage is not None and stage.scene.number == number
    context = {
        "title": "Live lab",
        "find_hint": "A scene",
        "scene": scene,
        "stage": stage,
        "scenes": site.scenes,
    }
    return call.html("lab.html" if is_open else "lab_closed.html", context)


async def _stream(site: LabSite, call: Call, number: int) -> Response:
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_frames(site, number), media_type="text/event-stream", headers=headers)


async def _frames(site: LabSite, number: int) -> AsyncIterator[bytes]:
    """One reading serves all tabs. Unchanged parts are not sent again."""
    sent, quiet = "", 0.0
    loop = asyncio.get_running_loop()
    ends = loop.time() + LASTS
    while loop.time() < ends:
        try:
            text = await site.snapshots.get(
                f"scene:{number}", LOOK, lambda: asyncio.to_thread(site.hall.look, number)
            )
            event = "look"
        except Exception as error:  # noqa: BLE001 a scene that was closed meanwhile: the page says so
            text, event = _sentence(error), "away"
        quiet += LOOK
        if text != sent or quiet > 10:
            yield f"event: {event}\ndata: {text}\n\n".encode()
            sent, quiet = text, 0.0
        await asyncio.sleep(LOOK)


def _sentence(error: Exception) -> str:
    said = str(error) if isinstance(error, HoldfastError) else "the scene is being opened"
    return json.dumps({"sentence": said})


async def _past(site: LabSite, call: Call, number: int) -> Response:
    try:
        at = float(call.request.query_params.get("at", "0"))
    except ValueError:
        raise Refusal(HTTPStatus.BAD_REQUEST, "at= takes seconds since the scene began") from None
    return Response(site.hall.past(number, at), media_type="application/json")


async def _act(site: LabSite, call: Call, number: int) -> Response:
    """A button: an act of the scene, a knob, or the scene as a whole."""
    form = await call.form()
    what = form.get("what", "")
    hall = site.hall
    if what == "enter":
        await hall.open(number)
    elif what == "again":
        await hall.open(number, unsafe=form.get("unsafe") == "1", again=True)
    elif what == "play":
        hall.play(number)
    elif what == "knob":
        hall.now(number).turn(form.get("name", ""), _number(form.get("value", "")))
    else:
        await asyncio.to_thread(hall.now(number).act, what, form.get("of"))
    site.snapshots.forget()
    if call.request.headers.get("x-fragment") == "1":
        return Response(status_code=HTTPStatus.NO_CONTENT)
    return RedirectResponse(f"/scene/{number}", HTTPStatus.SEE_OTHER)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"a knob takes a number, not {text[:40]!r}") from None
