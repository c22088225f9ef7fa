"""What every request passes: the host it was sent to, where a form came from, and the headers of every answer."""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.web.identity import CLIENT, Proxies

LOOPBACK = ("localhost", "127.0.0.1", "::1")
CSRF = "holdfast_csrf"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """In front of everything. A request for a host that is not ours is refused: a name of somebody else's may point here
    (DNS rebinding)."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str] | None, proxies: Proxies | None = None) -> None:
        self._app = app
        self._proxies = proxies
        self._hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        host = host_of(Request(scope).headers.get("host", ""))
        if self._hosts is not None and host not in self._hosts:
            text = f"This server does not go by the name {host[:100]!r}. Name it: --allowed-host, or hosts="
            await PlainTextResponse(text, 421)(scope, receive, guarded)
            return
        if self._proxies is not None:
            scope = {**scope, CLIENT: self._proxies.client_of(Request(scope))}
        await self._app(scope, receive, guarded)


def host_of(header: str) -> str:
    """Without the port and the brackets."""
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def comes_from_us(request: Request) -> bool:
    """Whether a browser sent this from a page of the dashboard. A program sends neither header: it needs a token."""
    site = request.headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        return False
    origin = request.headers.get("origin")
    if origin is not None and not (
        origin == "null" and site
    ):  # a browser may hide it, and then says that we are the same
        return urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower()
    return site is not None or "authorization" in request.headers


class Csrf:
    """A form has a mark that only a page of the dashboard, made for this person and this browser, can contain."""

    def __init__(self, secret: bytes, cookie: str = CSRF) -> None:
        self._secret = secret
        self.cookie = cookie

    def nonce(self, request: Request) -> str:
        return request.cookies.get(self.cookie) or secrets.token_urlsafe(16)

    def mark(self, nonce: str, name: str, salt: str = "") -> str:
        """Another one for every page: pages are packed, and what stays the same beside text of others could be guessed by
        how long they are."""
        salt = salt or secrets.token_hex(8)
        return f"{salt}.{self.sign('form', salt, nonce, name)}"

    def fits(self, request: Request, name: str, given: str) -> bool:
        nonce = request.cookies.get(self.cookie)
        salt, dot, _ = given.partition(".")
        wanted = self.mark(nonce or "", name, salt or ".")
        return bool(nonce and salt and dot) and hmac.compare_digest(wanted.encode(), given.encode())

    def sign(self, *parts: str) -> str:
        text = "\0".join(f"{len(part)}:{part}" for part in parts)
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()
