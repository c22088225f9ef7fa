"""The ASGI app: every page and act becomes a route behind `needs`, for people and for programs."""

import contextlib
import functools
from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from holdfast.app import Holdfast
from holdfast.errors import ConfigurationError
from holdfast.operate.doctor.thresholds import Limits
from holdfast.operate.search import check_texts
from holdfast.pages import Act, Asked, Page, Pages, View
from holdfast.web.acting import SAID, act_by_api, act_by_form, confirm, said_before
from holdfast.web.acts import ACTS
from holdfast.web.assets import serve_asset
from holdfast.web.calls import Call, Refusal, failed, needs, prefix_of, set_cookie
from holdfast.web.drawing import slug
from holdfast.web.edit import edit_act
from holdfast.web.engine_acts import ENGINE_ACTS
from holdfast.web.finder import find
from holdfast.web.guard import Guard
from holdfast.web.identity import SESSION, Authorize, OneTimeUrl
from holdfast.web.live import stream
from holdfast.web.masking import for_role
from holdfast.web.openapi import describe_api
from holdfast.web.plain import plain, written
from holdfast.web.site import Site
from holdfast.web.views import engine
from holdfast.web.views.drawn import Drawn
from holdfast.web.views.overview import numbers_soon

PATIENCE = 0.3  # seconds that a page waits for the numbers in its menu


class Dashboard:
    """What holdfast_web() makes: an ASGI app with its site at hand."""

    def __init__(self, site: Site, hosts: Sequence[str] | None) -> None:
        self.site = site
        self.routes = routes(site)
        inside = Starlette(
            routes=self.routes, lifespan=self._lifespan, exception_handlers={HTTPException: self._unrouted}
        )
        self._guard = Guard(inside, hosts)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Connections open at first use, so a parent that forwards no lifespan loses nothing but this tidy end."""
        yield
        await self.site.close()

    async def _unrouted(self, request: Request, error: Exception) -> Response:
        """What no route takes: a method that it does not know, a path that no page can have."""
        status = HTTPStatus(error.status_code) if isinstance(error, HTTPException) else HTTPStatus.NOT_FOUND
        said = (
            "there is no such page" if status == HTTPStatus.NOT_FOUND else "this is not how it is asked for"
        )
        response = failed(self.site, request, None, Refusal(status, said))
        response.headers.update(getattr(error, "headers", None) or {})
        return response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guard(scope, receive, send)


def holdfast_web(
    app: Holdfast,
    *,
    authorize: Authorize,
    read_only: bool = False,
    hosts: Sequence[str] | None = None,
    secret: str | None = None,
    title: str | None = None,
    limits: Limits | None = None,
) -> Dashboard:
    """The dashboard as an ASGI app, for any path: `api.mount("/ops", holdfast_web(app, authorize=...))`.

    `authorize` is given each request and returns an Identity, or None. `hosts` are the names that it may be reached by;
    None: whatever the app around it lets through. `secret` is for several processes that serve one dashboard.
    `limits` are from where on the doctor says a word.
    """
    if authorize is None:
        raise ConfigurationError(
            "holdfast_web() needs authorize=: a function that returns an Identity for a request, or None. "
            "Without one, everybody who reaches the app could act"
        )
    return dashboard(
        app, authorize, read_only=read_only, hosts=hosts, secret=secret, title=title, limits=limits
    )


def dashboard(
    app: Holdfast,
    authorize: Authorize,
    *,
    read_only: bool = False,
    hosts: Sequence[str] | None = None,
    secret: str | None = None,
    title: str | None = None,
    login: OneTimeUrl | None = None,
    limits: Limits | None = None,
    named: str = "MODULE:APP",
) -> Dashboard:
    app.load()
    site = Site(
        app,
        authorize,
        read_only=read_only,
        secret=secret,
        title=title,
        login=login,
        limits=limits,
        named=named,
    )
    site.add(Pages(engine(site), (*ACTS, *ENGINE_ACTS, edit_act(app.tasks.definition))))
    site.add_shapes()
    return Dashboard(site, hosts)


# Routes -------------------------------------------------------------------------------------------------------------

PUBLIC = ("/login", "/assets/{digest}/{name}")  # all others need a role


def routes(site: Site) -> list[Route]:
    made = [
        Route("/login", functools.partial(sign_in, site), methods=["GET"]),
        Route("/assets/{digest}/{name}", serve_asset, methods=["GET"]),
        Route("/find", needs("viewer", site)(functools.partial(find, site)), methods=["GET"]),
        Route("/live", needs("viewer", site)(functools.partial(stream, site)), methods=["GET"]),
        Route(
            "/api/v1/openapi.json", needs("viewer", site)(functools.partial(_openapi, site)), methods=["GET"]
        ),
    ]
    for act in site.acts.values():
        guarded = needs(act.role, site)
        one = f"/acts/{slug(act.name)}"
        made += [
            Route(one, guarded(functools.partial(_confirm, site, act)), methods=["GET"]),
            Route(one, guarded(functools.partial(_act, site, act)), methods=["POST"]),
            Route(f"/api/v1{one}", guarded(functools.partial(_api_act, site, act)), methods=["POST"]),
        ]
    for page in sorted(site.pages.values(), key=lambda page: "{" in page.path):
        path = _route_path(page.path)
        made += [
            Route(f"/{path}", needs("viewer", site)(functools.partial(_show, site, page)), methods=["GET"]),
            Route(
                f"/api/v1/{path or 'overview'}",
                needs("viewer", site)(functools.partial(_api, site, page)),
                methods=["GET"],
            ),
        ]
    made.append(Route("/{rest:path}", needs("viewer", site)(_nothing), methods=["GET"]))
    return made


def _route_path(path: str) -> str:
    """The last part of a path may hold slashes: names of people may."""
    return path[:-1] + ":path}" if path.endswith("}") else path


async def _nothing(call: Call) -> Response:
    raise Refusal(HTTPStatus.NOT_FOUND, "there is no such page")


async def _view(site: Site, page: Page, call: Call) -> View | None:
    """None: what the page is for is not in use."""
    check_texts({**call.request.path_params, **call.request.query_params})
    _check_searches(page, call)
    if page.in_use is not None and not await site.look(page.in_use()):
        return None
    asked = Asked(dict(call.request.path_params), dict(call.request.query_params), site.app.tasks)
    return await site.look(page.load(asked))


def _check_searches(page: Page, call: Call) -> None:
    """Whoever learns which errors hold a word reads them, word by word."""
    asked = [name for name in page.searches if call.request.query_params.get(name, "").strip()]
    if asked and not call.who.may("operator"):
        said = f"to search by {asked[0]} needs the role operator, and {call.who.name} is {call.who.role}"
        raise Refusal(HTTPStatus.FORBIDDEN, said)


async def _show(site: Site, page: Page, call: Call) -> Response:
    view = await _view(site, page, call)
    said = said_before(site, call.request)
    if view is None:
        context = {"page": page, "title": page.title, "said": said, "badges": await _badges(site)}
        return call.html("unused.html", context)
    context = {
        "page": page,
        "view": view,
        "title": view.title or page.title,
        "said": said,
        "query": dict(call.request.query_params),
        "badges": await _badges(site),
    }
    template = view.template if isinstance(view, Drawn) else "view.html"
    more = view.context if isinstance(view, Drawn) else {}
    response = call.html(template, {**context, **more})
    if said:
        response.delete_cookie(SAID, path=call.prefix or "/")
    return response


async def _badges(site: Site) -> dict[str, tuple[str, str]]:
    """By page: a number and its colour, only where something is wrong. From the looks that all share; a page does not wait
    for them, and is there without them."""
    found: dict[str, tuple[str, str]] = {}
    seen = await numbers_soon(site, PATIENCE)
    if seen is not None and seen.found.dead_letters.count:
        count = seen.found.dead_letters
        found["dead"] = (f"{count.count:,}{'+' if count.capped else ''}", "dead")
    diagnosis = site.known_diagnosis()
    if diagnosis is not None:
        wrong = diagnosis.count("error") + diagnosis.count("warning")
        if wrong:
            found["doctor"] = (str(wrong), "dead" if diagnosis.count("error") else "retry")
    return found


async def _api(site: Site, page: Page, call: Call) -> Response:
    view = await _view(site, page, call)
    if view is None:
        return call.json({"in_use": False, "about": page.about})
    seen = for_role(plain(view.data), call.who.role)  # by its own names, before it is wrapped in ours
    body = written({"data": seen, "next": plain(view.more), "cut": bool(view.cut)})
    return Response(body, media_type="application/json")


async def _confirm(site: Site, act: Act, call: Call) -> Response:
    if site.read_only:
        raise Refusal(HTTPStatus.FORBIDDEN, "this dashboard is read-only")
    return await confirm(site, call, act)


async def _act(site: Site, act: Act, call: Call) -> Response:
    return await act_by_form(site, call, act)


async def _api_act(site: Site, act: Act, call: Call) -> Response:
    return await act_by_api(site, call, act)


async def _openapi(site: Site, call: Call) -> Response:
    """As it is: what it calls by a secret's name is the name of a field."""
    return Response(written(describe_api(site, call.prefix)), media_type="application/json")


async def sign_in(site: Site, request: Request) -> Response:
    """The address that `holdfast web` prints. It is good once."""
    token = request.query_params.get("token", "")
    session = site.login.redeem(token) if site.login is not None and token else None
    if session is None:
        refused = Refusal(HTTPStatus.UNAUTHORIZED, "this address is not good, or was used before")
        return failed(site, request, None, refused)
    response = RedirectResponse(prefix_of(request) + "/", HTTPStatus.SEE_OTHER)
    set_cookie(request, response, SESSION, session)
    return response
