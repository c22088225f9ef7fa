"""One request: its identity, its rights, and how errors are reported. Every route passes `needs`."""

import difflib
import functools
import hashlib
import logging
import math
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from holdfast.cli.refusals import words
from holdfast.db.faults import Forbidden, LockTimeout
from holdfast.errors import ConfigurationError, DatabaseError, DatabaseUnavailable, HoldfastError
from holdfast.model.actor import Actor, is_address
from holdfast.model.masking import masked_text
from holdfast.pages import Role
from holdfast.web.assets import asset_path
from holdfast.web.attempts import brings_token
from holdfast.web.databases import find_places, places_of, sign_in_address, top_prefix
from holdfast.web.drawing import draw
from holdfast.web.guard import comes_from_us
from holdfast.web.identity import Identity, client_of
from holdfast.web.masking import for_role
from holdfast.web.plain import as_json, plain, written
from holdfast.web.site import Site
from holdfast.web.zones import use_zone

_log = logging.getLogger("holdfast.web")
_FORM = 1024 * 1024  # bytes
_FIELDS = 200  # of a form


class Refusal(Exception):
    """Why a request gets no answer, with the status of HTTP."""

    def __init__(self, status: HTTPStatus, sentence: str, wait: float = 0.0) -> None:
        super().__init__(sentence)
        self.status = status
        self.wait = wait  # seconds until it is worth to ask again


@dataclass(slots=True)
class Call:
    site: Site
    request: Request
    who: Identity
    nonce: str = ""

    @property
    def prefix(self) -> str:
        return prefix_of(self.request)

    @property
    def actor(self) -> Actor:
        """The actor, for the audit."""
        client = client_of(self.request)
        address = client if client is not None and is_address(client) else None
        return Actor(self.who.name, "api" if self.is_api else "web", address=address)

    @property
    def is_api(self) -> bool:
        return is_api(self.request)

    def context(self) -> dict[str, Any]:
        return {
            **base_context(self.site, self.request, self.who),
            "csrf": self.site.csrf.mark(self.nonce, self.who.name),
        }

    def html(self, template: str, context: Mapping[str, Any], status: int = 200) -> Response:
        return self.kept(HTMLResponse(draw(template, {**self.context(), **context}), status))

    def kept(self, response: Response) -> Response:
        """With the cookie that forms are checked against, where the browser has none yet."""
        if self.request.cookies.get(self.site.csrf.cookie) != self.nonce and not self.is_api:
            set_cookie(self.request, response, self.site.csrf.cookie, self.nonce)
        return response

    def json(self, value: Any, status: int = 200) -> Response:
        seen = for_role(plain(value), self.who.role, self.site.masked_of)
        return Response(written(seen), status, media_type="application/json")

    def tagged(self, body: bytes) -> Response:
        """JSON for a program that polls: it gets an empty 304 while its copy is current."""
        tag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
        known = [word.strip() for word in self.request.headers.get("if-none-match", "").split(",")]
        if tag in known or "*" in known:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"etag": tag})
        return Response(body, media_type="application/json", headers={"etag": tag})

    def query(self, known: Sequence[str]) -> dict[str, str]:
        """What its address says behind the `?`. A slip in a name would show more than was meant, so it is refused."""
        where = self.request.scope["path"].removeprefix(self.request.scope.get("root_path", ""))
        return self.known_names(self.request.query_params.multi_items(), known, where)

    def known_names(
        self, given: Sequence[tuple[str, str]], known: Sequence[str], where: str
    ) -> dict[str, str]:
        for name, _ in given:
            if name not in known:
                raise ConfigurationError(_unknown(where, name, known))
        found = dict(given)
        if len(found) < len(given):
            names = [name for name, _ in given]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigurationError(f"{twice} is in the address more than once. Say it once")
        return found

    async def form(self) -> dict[str, str]:
        """The submitted form, once it is known that a page of this dashboard sent it."""
        given = await fields_sent(self.request)
        if not self.site.csrf.fits(self.request, self.who.name, given.pop("csrf", "")):
            raise Refusal(
                HTTPStatus.FORBIDDEN,
                "this form is not from this dashboard, or is too old. Open the page again",
            )
        return given


async def fields_sent(request: Request) -> dict[str, str]:
    """Of a form."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _FORM:
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a form has {_FORM:,} bytes at most")
    return dict(_fields(body.decode("utf-8", "replace")))


def _unknown(where: str, name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    meant = f". Did you mean {near[0]}?" if near else ""
    return f"{where} does not know {name[:40]!r} (known: {', '.join(known) or 'none'}){meant}"


def _fields(body: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(body, keep_blank_values=True, max_num_fields=_FIELDS)
    except ValueError:
        said = f"a form has {_FIELDS} fields at most"
        raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, said) from None


def prefix_of(request: Request) -> str:
    """Where we are mounted."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def is_api(request: Request) -> bool:
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", "")).startswith("/api/")


def set_cookie(request: Request, response: Response, name: str, value: str, age: int | None = None) -> None:
    """For our own paths, unseen by scripts, never sent along by another site's form."""
    response.set_cookie(
        name,
        value,
        max_age=age,
        path=prefix_of(request) or "/",
        httponly=True,
        samesite="lax",
        secure=_is_safe(request),
    )


def _is_safe(request: Request) -> bool:
    """Whether the browser came by TLS. Behind a proxy that ends it, the browser itself says so with a form."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


def base_context(site: Site, request: Request, who: Identity | None) -> dict[str, Any]:
    path = request.scope["path"].removeprefix(request.scope.get("root_path", "")).strip("/")
    return {
        "site": site,
        "who": who,
        "role": "viewer" if who is None else who.role,
        "prefix": prefix_of(request),
        "path": path,
        "here": f"{path}?{request.url.query}" if request.url.query else path,  # where an act comes back to
        "places": places_of(request),
        "sign_out": site.people is not None and f"{top_prefix(site, request)}/logout",
        "asset": asset_path,
        "now": site.now(),
    }


def local(back: str) -> str:
    """A place on this site, whatever was sent: it is always put behind our own prefix."""
    if "\\" in back or any(ord(c) < 33 for c in back):
        return ""
    return back.lstrip("/")


Endpoint = Callable[[Call], Awaitable[Response]]


def needs(role: Role, site: Site) -> Callable[[Endpoint], Callable[[Request], Awaitable[Response]]]:
    """The one place that decides about access. A change needs a higher role, and a request from one of our pages."""

    def decorate(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        @functools.wraps(endpoint)
        async def answer(request: Request) -> Response:
            who: Identity | None = None
            use_zone(request)
            try:
                who = await known(site, request)
                if site.beside and not is_api(request):
                    await find_places(site, request)
                if not who.may(role):
                    raise Refusal(
                        HTTPStatus.FORBIDDEN, f"this needs the role {role}, and {who.name} is {who.role}"
                    )
                if request.method not in ("GET", "HEAD"):
                    _check_change(site, request)
                return await endpoint(Call(site, request, who, site.csrf.nonce(request)))
            except Exception as error:  # noqa: BLE001 whatever it is, the rest of the page must say it
                return failed(site, request, who, error)

        answer.role = role  # type: ignore[attr-defined]
        return answer

    return decorate


async def known(site: Site, request: Request) -> Identity:
    """The identity of the request. After too many wrong ones an address is not checked for a while."""
    if brings_token(request):
        check_attempts(site, request)
    who = await site.identity(request)
    if who is None:
        if brings_token(request):
            site.attempts.failed(request)
        raise Refusal(HTTPStatus.UNAUTHORIZED, "sign in first")
    return who


def check_attempts(site: Site, request: Request, what: str = "tokens") -> None:
    if wait := site.attempts.wait(request):
        said = f"too many wrong {what} came from this address. Try again in {math.ceil(wait)} seconds"
        raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, said, wait)


def check_searches(call: Call, names: Sequence[str], query: Mapping[str, str]) -> None:
    """If a viewer could learn which errors contain a word, they could read them, word by word."""
    asked = [name for name in names if query.get(name, "").strip()]
    if asked and not call.who.may("operator"):
        said = f"to search by {asked[0]} needs the role operator, and {call.who.name} is {call.who.role}"
        raise Refusal(HTTPStatus.FORBIDDEN, said)


def _check_change(site: Site, request: Request) -> None:
    if not comes_from_us(request):
        raise Refusal(HTTPStatus.FORBIDDEN, "this was sent from a page that is not ours")
    if site.read_only:
        raise Refusal(HTTPStatus.FORBIDDEN, "this dashboard is read-only")


def failed(site: Site, request: Request, who: Identity | None, error: Exception) -> Response:
    status, sentence = _said(error)
    mark = ""
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        mark = secrets.token_hex(4)
        _log.error("%s %s failed (%s)", request.method, request.scope["path"], mark, exc_info=error)
    sentence = masked_text(sentence, names=site.masked_of(""))
    reason = getattr(error, "code", None) or status.phrase.lower()
    wait = getattr(error, "wait", 0.0)
    extra = {"retry-after": str(math.ceil(wait))} if wait else {}
    if is_api(request):
        body = {
            "type": "about:blank",
            "title": status.phrase,
            "status": int(status),
            "detail": sentence,
            "reason": reason,
        }
        if status == HTTPStatus.UNAUTHORIZED:
            extra["www-authenticate"] = "Bearer"
        media = "application/problem+json"
        return Response(as_json({**body, "id": mark or None}, "operator"), status, extra, media)
    context = {**base_context(site, request, who), "csrf": "", "status": int(status), "phrase": status.phrase}
    page = _sign_in_page(site, request) if status == HTTPStatus.UNAUTHORIZED else ""
    body_ = draw("error.html", {**context, "sentence": sentence, "mark": mark, "sign_in": page})
    return HTMLResponse(body_, status, extra)


def _sign_in_page(site: Site, request: Request) -> str:
    if site.people is not None:
        return sign_in_address(top_prefix(site, request), request)
    return site.sign_in_page(request)


def sentence_of(error: Exception) -> str:
    """Why not, for a person."""
    return _said(error)[1]


def _said(error: Exception) -> tuple[HTTPStatus, str]:
    if isinstance(error, Refusal):
        return error.status, str(error)
    if isinstance(error, DatabaseUnavailable):
        return HTTPStatus.SERVICE_UNAVAILABLE, f"The database is unreachable: {error}"
    if isinstance(error, Forbidden):
        said = "the database does not allow this to the role that this dashboard has there"
        return HTTPStatus.FORBIDDEN, f"{said}: {words(error)}. Nothing was changed"
    if isinstance(error, LockTimeout) and "statement timeout" in str(error):
        said = "this took too long to read, or somebody holds a lock on it: see Doctor"
        return HTTPStatus.SERVICE_UNAVAILABLE, said
    if isinstance(error, DatabaseError):
        return HTTPStatus.SERVICE_UNAVAILABLE, words(error)
    if isinstance(error, HoldfastError | ConfigurationError):
        text = words(error)
        missing = text.startswith("there is no") or getattr(error, "code", "") in ("no_run", "no_queue")
        return (HTTPStatus.NOT_FOUND if missing else HTTPStatus.BAD_REQUEST), text
    return HTTPStatus.INTERNAL_SERVER_ERROR, "something failed that should not"
