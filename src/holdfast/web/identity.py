"""Identities: a name and a role, found by a function of yours or by one of these.

`authorize` is given the request and returns an Identity, or None: not known. It may be async. BearerTokens, ProxyHeader and
OneTimeUrl are such functions, and first_of() asks several.
"""

import hashlib
import hmac
import inspect
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from starlette.requests import Request

from holdfast.errors import ConfigurationError
from holdfast.model.actor import is_address
from holdfast.model.text import printable, storable
from holdfast.pages import ROLES, Role

SESSION = "holdfast_session"
_MOST_SESSIONS = 1000
_HASHED = "sha256:"


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a request. The name is the actor in the audit."""

    name: str
    role: Role = "viewer"

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ConfigurationError(f"there is no role {self.role!r} (known: {', '.join(ROLES)})")
        if not self.name or storable(self.name, 200) != self.name or printable(self.name) != self.name:
            raise ConfigurationError(
                f"an identity needs a name of up to 200 bytes without control characters, not {self.name[:200]!r}"
            )

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


Authorize = Callable[[Request], Identity | Awaitable[Identity | None] | None]


async def identify(authorize: Authorize, request: Request) -> Identity | None:
    found = authorize(request)
    if inspect.isawaitable(found):
        found = await found
    if found is not None and not isinstance(found, Identity):
        raise ConfigurationError(
            f"authorize= must return an Identity or None, not {type(found).__name__}. Write Identity(name, role)"
        )
    return found


def first_of(*ways: Authorize) -> Authorize:
    """The first of several ways to sign in that returns an identity."""

    async def authorize(request: Request) -> Identity | None:
        for way in ways:
            found = await identify(way, request)
            if found is not None:
                return found
        return None

    authorize.sign_in = next(filter(None, map(sign_in_of, ways)), None)  # type: ignore[attr-defined]
    return authorize


def sign_in_of(authorize: Authorize) -> Callable[[Request], str] | None:
    """Where the app around has a page to sign in at, by `authorize.sign_in(request)`; None: it has none."""
    found: Callable[[Request], str] | None = getattr(authorize, "sign_in", None)
    return found


def hashed(token: str) -> str:
    """The hash of a token, for BearerTokens."""
    return _HASHED + hashlib.sha256(token.encode()).hexdigest()


def bearer_of(request: Request) -> str | None:
    """The token that a program sends; None: it sends none."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" and token else None


class BearerTokens:
    """`Authorization: Bearer TOKEN`, for programs: `BearerTokens({hashed("..."): Identity("ci", "viewer")})`.

    A token is given in clear text, or better as `sha256:...`, so that no configuration contains it.
    """

    def __init__(self, tokens: Mapping[str, Identity]) -> None:
        for token in tokens:
            if not token.startswith(_HASHED) and len(token) < 20:
                raise ConfigurationError(
                    "a bearer token must have at least 20 characters. Make one: openssl rand -hex 32"
                )
        self._known = {
            (token if token.startswith(_HASHED) else hashed(token)): who for token, who in tokens.items()
        }

    def __call__(self, request: Request) -> Identity | None:
        token = bearer_of(request)
        if token is None:
            return None
        given, found = hashed(token), None
        for known, who in self._known.items():  # all of them, so that time tells nothing
            if hmac.compare_digest(known, given):
                found = who
        return found


CLIENT = "holdfast.client"  # in the scope of a request: the address that it came from, behind trusted proxies


class Proxies:
    """Proxies at these addresses and networks are trusted to name the client behind them."""

    def __init__(self, addresses: Sequence[str]) -> None:
        try:
            self._from: list[IPv4Network | IPv6Network] = [ip_network(one) for one in addresses]
        except ValueError as error:
            raise ConfigurationError(f"addresses= takes addresses and networks: {error}") from None

    def trusts(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return False
        mapped = (
            address.ipv4_mapped if isinstance(address, IPv6Address) else None
        )  # on a socket for both kinds
        return any(one in network for one in (address, mapped) if one is not None for network in self._from)

    def client_of(self, request: Request) -> str | None:
        """The nearest address that is not a trusted proxy. Anybody can have written the part of the header before it."""
        here = None if request.client is None else request.client.host
        said = ",".join(request.headers.getlist("x-forwarded-for")).split(",")
        while here is not None and said and self.trusts(here):
            before = said.pop().strip()
            if not is_address(before):
                break
            here = before
        return here


def client_of(request: Request) -> str | None:
    """Where it came from, as far as is known."""
    found: str | None = request.scope.get(CLIENT)
    return found if found is not None or request.client is None else request.client.host


class ProxyHeader:
    """The name that your proxy has authenticated: `ProxyHeader("X-Forwarded-User", ["10.0.0.5"], roles={"mara": "admin"})`.

    The header is trusted only from these addresses. A name that is not in `roles` has `role`; None: no access.
    """

    def __init__(
        self,
        header: str,
        addresses: Sequence[str],
        *,
        roles: Mapping[str, Role] | None = None,
        role: Role | None = "viewer",
    ) -> None:
        if not addresses:
            raise ConfigurationError(
                "ProxyHeader needs the addresses of the proxy: anybody who reaches this port could set the header"
            )
        self._proxies = Proxies(addresses)
        self._header = header
        self._roles: dict[str, Role] = dict(roles or {})
        self._role: Role | None = role

    def __call__(self, request: Request) -> Identity | None:
        if request.client is None or not self._proxies.trusts(request.client.host):
            return None
        names = request.headers.getlist(self._header)
        if len(names) != 1 or not names[0]:  # two headers: one of them is not the proxy's
            return None
        role = self._role
        if names[0] in self._roles:
            role = self._roles[names[0]]
        return None if role is None else Identity(storable(printable(names[0]), 200), role)


class OneTimeUrl:
    """For `holdfast web` on this machine: an address that is good once, and then a session in this browser."""

    def __init__(
        self, identity: Identity, on_new: Callable[[str], None] = lambda _: None, cookie: str = SESSION
    ) -> None:
        """`cookie`: its name. A browser keeps one of a name for all ports of a machine."""
        self._identity = identity
        self._on_new = on_new
        self.cookie = cookie
        self._sessions: dict[str, None] = {}
        self.token = secrets.token_urlsafe(32)

    def redeem(self, token: str) -> str | None:
        """The session for this token; None: it is not good, or not any more."""
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            return None
        self.token = secrets.token_urlsafe(32)
        session = secrets.token_urlsafe(32)
        self._sessions[hashed(session)] = None
        while len(self._sessions) > _MOST_SESSIONS:
            self._sessions.pop(next(iter(self._sessions)))
        self._on_new(self.token)
        return session

    def end(self, request: Request) -> None:
        self._sessions.pop(hashed(request.cookies.get(self.cookie, "")), None)

    def __call__(self, request: Request) -> Identity | None:
        return self._identity if hashed(request.cookies.get(self.cookie, "")) in self._sessions else None
