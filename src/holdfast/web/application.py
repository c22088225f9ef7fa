"""The ASGI app: every page and act becomes a route behind `needs`, for people and for programs."""

import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.app import Holdfast
from holdfast.errors import ConfigurationError
from holdfast.operate.doctor.thresholds import Limits
from holdfast.pages import Act, Page, Pages, View
from holdfast.web.acting import SAID, Notice, act_by_api, act_by_form, act_by_name, confirm, said_before
from holdfast.web.acts import dead_acts, job_acts
from holdfast.web.assets import serve_asset
from holdfast.web.attempts import Attempts, brings_token
from holdfast.web.calls import (
    Call,
    Refusal,
    check_attempts,
    failed,
    needs,
    prefix_of,
)
from holdfast.web.databases import DATABASE, about, check_names
from holdfast.web.drawing import plain_text, slug
from holdfast.web.edit import REVEAL, copy_act, edit_act
from holdfast.web.engine_acts import ENGINE_ACTS
from holdfast.web.enqueueing import enqueue_act
from holdfast.web.finder import find
from holdfast.web.guard import Guard
from holdfast.web.identity import Authorize, Identity, OneTimeUrl, Proxies
from holdfast.web.live import stream
from holdfast.web.masking import for_role
from holdfast.web.naming import address_of, names_of
from holdfast.web.openapi import describe_api
from holdfast.web.packing import Packed
from holdfast.web.plain import plain, written
from holdfast.web.signing_in import sign_in_routes
from holdfast.web.site import Site
from holdfast.web.statements import show_statements
from holdfast.web.swapping import look_at
from holdfast.web.undoing import UNDO
from holdfast.web.users import UsersFile
from holdfast.web.views import engine
from holdfast.web.views.drawn import Drawn
from holdfast.web.views.overview import numbers_soon
from holdfast.web.views.saved import view_acts
from holdfast.web.watching import check_query

PATIENCE = 0.3  # seconds that a page waits for the numbers in its menu


class Dashboard:
    """What holdfast_web() makes: an ASGI app with its sites at hand, one for each database."""

    def __init__(
        self, sites: Sequence[Site], hosts: Sequence[str] | None, proxies: Proxies | None = None
    ) -> None:
        self.sites = sites
        self.site = sites[0]
        self.routes = routes(self.site)
        top: Sequence[BaseRoute] = several(sites) if self.site.name else self.routes
        inside = Starlette(routes=top, lifespan=self._lifespan, exception_handlers=unrouted(self.site))
        self._guard = Guard(Packed(inside), hosts, proxies)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Connections open at first use, so a parent that forwards no lifespan loses nothing but this tidy end."""
        yield
        await self.close()

    async def close(self) -> None:
        for site in self.sites:
            await site.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guard(scope, receive, send)


def holdfast_web(
    app: Holdfast | Mapping[str, Holdfast],
    *,
    authorize: Authorize | None = None,
    auth: Authorize | None = None,
    read_only: bool = False,
    hosts: Sequence[str] | None = None,
    secret: str | None = None,
    title: str | None = None,
    limits: Limits | None = None,
    trace_url: str | None = None,
) -> Dashboard:
    """The dashboard as an ASGI app, for any path: `api.mount("/ops", holdfast_web(app, authorize=...))`.

    Several databases are behind one switcher by their names, each under its own path: `{"shop": app, "billing": other}`.
    `authorize` receives each request and returns an Identity, or None; `database_of(request)` returns the requested
    database. `auth` is a short name for `authorize`; one of the two is needed. `hosts` are the host names under which it may
    be reached; None: whatever the app around it accepts. `secret` is for several processes that serve one dashboard.
    `limits` are the thresholds of the doctor. `trace_url` is the address of a trace, with {trace} in it: a job that has a
    trace links there.
    """
    given = [one for one in (authorize, auth) if one is not None]
    if len(given) != 1:
        raise ConfigurationError(
            "holdfast_web() needs authorize=: a function that returns an Identity for a request, or None. "
            "Without one, everybody who reaches the app could act"
            if not given
            else "holdfast_web() got authorize= and auth=, which are the same: pass one of them"
        )
    return dashboard(
        app,
        given[0],
        read_only=read_only,
        hosts=hosts,
        secret=secret,
        title=title,
        limits=limits,
        trace_url=trace_url,
    )


def dashboard(
    app: Holdfast | Mapping[str, Holdfast],
    authorize: Authorize,
    *,
    read_only: bool = False,
    hosts: Sequence[str] | None = None,
    secret: str | None = None,
    title: str | None = None,
    login: OneTimeUrl | None = None,
    people: UsersFile | None = None,
    limits: Limits | None = None,
    trace_url: str | None = None,
    named: str | Mapping[str, str] = "MODULE:APP",
    proxies: Proxies | None = None,
) -> Dashboard:
    apps = app if isinstance(app, Mapping) else {"": app}
    if isinstance(app, Mapping):
        check_names(app)
        if title is not None:
            raise ConfigurationError("a title is for one database. Several are called by their names")
    sites, attempts = [], Attempts()
    for name, one in apps.items():
        one.load()
        site = Site(
            one,
            authorize,
            read_only=read_only,
            secret=secret,
            title=title,
            login=login,
            people=people,
            limits=limits,
            trace_url=trace_url,
            named=named if isinstance(named, str) else named.get(name, "MODULE:APP"),
            name=name,
            attempts=attempts,
        )
        known = one.tasks.definition
        of_one = (enqueue_act(one.tasks), edit_act(known), copy_act(known), REVEAL)
        of_jobs = (*job_acts(site.masked_of), *of_one, *dead_acts(site.masked_of, known))
        site.add(Pages(engine(site), (*of_jobs, UNDO, *ENGINE_ACTS, *view_acts(site))))
        site.add_shapes()
        sites.append(site)
    for site in sites:
        site.beside = sites if site.name else ()
    return Dashboard(sites, hosts, proxies)


# Routes -------------------------------------------------------------------------------------------------------------


def several(sites: Sequence[Site]) -> list[BaseRoute]:
    """Each database under its name. A request that names none is led to the first that its sender may enter."""
    first = sites[0]
    return [
        *sign_in_routes(first),
        Route("/assets/{digest}/{name}", serve_asset, methods=["GET"]),
        Route("/", functools.partial(_choose, sites), methods=["GET"]),
        Route("/api/v1/databases", functools.partial(_databases, sites), methods=["GET"]),
        *(Mount(f"/d/{site.name}", _inside(site)) for site in sites),
    ]


def _inside(site: Site) -> ASGIApp:
    app = Starlette(routes=routes(site), exception_handlers=unrouted(site))

    async def about_it(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, DATABASE: site.name}, receive, send)

    return about_it


async def _entered(sites: Sequence[Site], request: Request) -> list[tuple[Site, Identity]]:
    """The databases that the sender may enter, and as whom."""
    if brings_token(request):
        check_attempts(sites[0], request)
    known = [(site, await site.identity(about(request, site.name))) for site in sites]
    found = [(site, who) for site, who in known if who is not None]
    if not found:
        if brings_token(request):
            sites[0].attempts.failed(request)
        raise Refusal(HTTPStatus.UNAUTHORIZED, "sign in first")
    return found


async def _choose(sites: Sequence[Site], request: Request) -> Response:
    try:
        site, _ = (await _entered(sites, request))[0]
    except Exception as error:  # noqa: BLE001 as in `needs`
        return failed(sites[0], request, None, error)
    return RedirectResponse(f"{prefix_of(request)}/d/{site.name}/", HTTPStatus.SEE_OTHER)


async def _databases(sites: Sequence[Site], request: Request) -> Response:
    try:
        entered = await _entered(sites, request)
    except Exception as error:  # noqa: BLE001 as in `needs`
        return failed(sites[0], request, None, error)
    found = [
        {
            "name": s.name,
            "role": who.role,
            "url": f"{prefix_of(request)}/d/{s.name}/api/v1",
            "away": bool(s.trouble()),
        }
        for s, who in entered
    ]
    return Response(written({"data": found}), media_type="application/json")


def unrouted(site: Site) -> dict[Any, Any]:
    """What no route takes: a method that it does not know, a path that no page can have."""

    async def refuse(request: Request, error: Exception) -> Response:
        status = HTTPStatus(error.status_code) if isinstance(error, HTTPException) else HTTPStatus.NOT_FOUND
        said = (
            "there is no such page" if status == HTTPStatus.NOT_FOUND else "this is not how it is asked for"
        )
        response = failed(site, request, None, Refusal(status, said))
        response.headers.update(getattr(error, "headers", None) or {})
        return response

    return {HTTPException: refuse}


def routes(site: Site) -> list[Route]:
    made = [
        *([] if site.name else sign_in_routes(site)),
        Route("/assets/{digest}/{name}", serve_asset, methods=["GET"]),
        Route("/sql", needs("viewer", site)(functools.partial(show_statements, site)), methods=["GET"]),
        Route("/find", needs("viewer", site)(functools.partial(find, site)), methods=["GET"]),
        *(
            Route(path, needs("viewer", site)(functools.partial(stream, site)), methods=["GET"])
            for path in ("/live", "/api/v1/live")
        ),
        Route(
            "/api/v1/openapi.json", needs("viewer", site)(functools.partial(_openapi, site)), methods=["GET"]
        ),
    ]
    made.append(
        Route(
            "/api/v1/operations",
            needs("operator", site)(functools.partial(act_by_name, site)),
            methods=["POST"],
        )
    )
    for act in site.acts.values():
        guarded = needs(act.role, site)
        one = f"/acts/{slug(act.name)}"
        made += [
            Route(one, guarded(functools.partial(_confirm, site, act)), methods=["GET"]),
            Route(one, guarded(functools.partial(_act, site, act)), methods=["POST"]),
            Route(f"/api/v1{one}", guarded(functools.partial(_api_act, site, act)), methods=["POST"]),
        ]
    for page in sorted(site.pages.values(), key=lambda page: "{" in page.path):
        for name in names_of(page):
            made += [
                _at(site, page, f"/{name}", _show),
                _at(site, page, f"/api/v1/{name or 'overview'}", _api),
            ]
    for act in site.acts.values():
        if (also := address_of(act.name)) is not None:
            done = needs(act.role, site)(functools.partial(_api_act, site, act))
            made.append(Route(_route_path(f"/api/v1/{also}"), done, methods=["POST"]))
    made.append(Route("/{rest:path}", needs("viewer", site)(_nothing), methods=["GET"]))
    return made


def _at(
    site: Site, page: Page, path: str, answer: Callable[[Site, Page, Call], Awaitable[Response]]
) -> Route:
    return Route(
        _route_path(path), needs("viewer", site)(functools.partial(answer, site, page)), methods=["GET"]
    )


def _route_path(path: str) -> str:
    """The part that a page is about may hold slashes: names of people may."""
    return path.replace("}", ":path}")


async def _nothing(call: Call) -> Response:
    raise Refusal(HTTPStatus.NOT_FOUND, "there is no such page")


async def _view(site: Site, page: Page, call: Call) -> View | None:
    """None: what the page is for is not in use."""
    asked = check_query(call, page, dict(call.request.path_params), call.query(page.names()))
    await site.learn_masked()
    if page.in_use is not None and not await site.look(page.in_use()):
        return None
    return await site.look(page.load(asked))


async def _show(site: Site, page: Page, call: Call) -> Response:
    view = await _view(site, page, call)
    said = said_before(site, call.request)
    if view is None:
        context = {"page": page, "title": page.title, "said": said, "badges": await _badges(site)}
        return _told(call, call.html("unused.html", context), said)
    context = {
        "page": page,
        "view": view,
        "title": plain_text(view.title or page.title),
        "said": said,
        "query": dict(call.request.query_params),
        "was": site.baselines.keep(look_at(view, site.names).lines, site.now()) if page.live else "",
        "badges": await _badges(site),
    }
    template = view.template if isinstance(view, Drawn) else "view.html"
    more = view.context if isinstance(view, Drawn) else {}
    return _told(call, call.html(template, {**context, **more}), said)


def _told(call: Call, response: Response, said: Notice | None) -> Response:
    """What an act did is said once."""
    if said:
        response.delete_cookie(SAID, path=call.prefix or "/")
    return response


async def _badges(site: Site) -> dict[str, tuple[str, str]]:
    """By page: a number and its colour, only if something is wrong. From the shared snapshots; a page does not wait
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
    # By its own names, before it is wrapped in ours.
    seen = for_role(plain(view.data), call.who.role, site.masked_of)
    return call.tagged(written({"data": seen, "next": plain(view.more), "cut": bool(view.cut)}))


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
    call.query(())
    return call.tagged(written(describe_api(site, call.prefix)))
