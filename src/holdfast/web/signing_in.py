"""Sign-in: an address that works once; or, if there is a file of users, a page that asks for a password, and the
sign-out."""

import functools
import logging
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from holdfast.model.text import printable
from holdfast.web.calls import (
    Refusal,
    base_context,
    check_attempts,
    failed,
    fields_sent,
    local,
    prefix_of,
    set_cookie,
)
from holdfast.web.drawing import draw
from holdfast.web.guard import comes_from_us
from holdfast.web.site import Site
from holdfast.web.users import LONGEST, UsersFile

_log = logging.getLogger("holdfast.web")


def sign_in_routes(site: Site) -> list[Route]:
    if site.people is None:
        return [Route("/login", functools.partial(by_address, site), methods=["GET"])]
    people = site.people
    return [
        Route("/login", functools.partial(_asks, site, people), methods=["GET"]),
        Route("/login", functools.partial(_enters, site, people), methods=["POST"]),
        Route("/logout", functools.partial(_leaves, site, people), methods=["POST"]),
    ]


async def _asks(site: Site, people: UsersFile, request: Request) -> Response:
    return _page(site, people, request, local(request.query_params.get("back", "")))


def _page(site: Site, people: UsersFile, request: Request, back: str, wrong: str = "") -> Response:
    nonce = people.csrf.nonce(request)
    context = {
        **base_context(site, request, None),
        "csrf": people.csrf.mark(nonce, ""),
        "wrong": wrong,
        "back": back,
        "longest": LONGEST,
    }
    status = HTTPStatus.UNAUTHORIZED if wrong else HTTPStatus.OK
    response = HTMLResponse(draw("login.html", context), status)
    set_cookie(request, response, people.csrf.cookie, nonce)
    return response


async def _enters(site: Site, people: UsersFile, request: Request) -> Response:
    try:
        _check_origin(request)
        check = functools.partial(check_attempts, site, request, "passwords")
        check()
        form = await fields_sent(request)
        if not people.csrf.fits(request, "", form.get("csrf", "")):
            said = "this form is not from this dashboard, or is too old. Open the page again"
            raise Refusal(HTTPStatus.FORBIDDEN, said)
        name, back = form.get("name", ""), local(form.get("back", ""))
        session = await people.enter(name, form.get("password", ""), check)
    except Exception as error:  # noqa: BLE001 as in `needs`
        return failed(site, request, None, error)
    if session is None:
        site.attempts.failed(request)
        _log.warning("somebody could not sign in as %r", printable(name[:80]))
        return _page(site, people, request, back, "The name or the password is wrong.")
    response = RedirectResponse(f"{prefix_of(request)}/{back}", HTTPStatus.SEE_OTHER)
    set_cookie(request, response, people.cookie, session)
    return response


async def _leaves(site: Site, people: UsersFile, request: Request) -> Response:
    try:
        _check_origin(request)
    except Refusal as error:
        return failed(site, request, None, error)
    people.end(request)
    response = RedirectResponse(f"{prefix_of(request)}/login", HTTPStatus.SEE_OTHER)
    response.delete_cookie(people.cookie, path=prefix_of(request) or "/")
    return response


def _check_origin(request: Request) -> None:
    if not comes_from_us(request):
        raise Refusal(HTTPStatus.FORBIDDEN, "this was sent from a page that is not ours")


async def by_address(site: Site, request: Request) -> Response:
    """The address that `holdfast web` prints. It is good once."""
    token = request.query_params.get("token", "")
    try:
        check_attempts(site, request)
    except Refusal as error:
        return failed(site, request, None, error)
    session = site.login.redeem(token) if site.login is not None and token else None
    if site.login is None or session is None:
        if token:
            site.attempts.failed(request)
        refused = Refusal(HTTPStatus.UNAUTHORIZED, "this address is not good, or was used before")
        return failed(site, request, None, refused)
    response = RedirectResponse(prefix_of(request) + "/", HTTPStatus.SEE_OTHER)
    set_cookie(request, response, site.login.cookie, session)
    return response
