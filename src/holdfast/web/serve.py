"""`holdfast web`: the dashboard in a process of its own."""

import contextlib
import ipaddress
import socket
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import uvicorn
from starlette.requests import Request
from starlette.types import ASGIApp

from holdfast.app import Holdfast
from holdfast.errors import ConfigurationError
from holdfast.operate.doctor.thresholds import Limits
from holdfast.pages import Role
from holdfast.settings import default_actor
from holdfast.web.application import Dashboard, dashboard
from holdfast.web.databases import database_of
from holdfast.web.guard import LOOPBACK
from holdfast.web.identity import (
    Authorize,
    BearerTokens,
    Identity,
    OneTimeUrl,
    Proxies,
    ProxyHeader,
    first_of,
    identify,
)
from holdfast.web.users import UsersFile

Apps = Holdfast | Mapping[str, Holdfast]

_LAST = 3  # seconds that open requests have when it ends


@dataclass(frozen=True, slots=True)
class Served:
    """Where, for whom, and how much they may do."""

    host: str = "127.0.0.1"
    port: int = 8765
    read_only: bool = False
    allowed_hosts: Sequence[str] = ()
    proxy_header: str | None = None
    proxy_addresses: Sequence[str] = ()
    proxy_admins: Sequence[str] = ()  # NAME, or DATABASE=NAME where there are several
    proxy_operators: Sequence[str] = ()
    token_hash: str | None = None
    title: str | None = None
    limits: Limits | None = None  # of the doctor
    trace_url: str | None = None
    named: str | Mapping[str, str] = "MODULE:APP"  # how commands name the app
    users: str | None = None  # a file of people and programs


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def roles_in(database: str, served: Served) -> dict[str, Role]:
    """The users with more than the viewer's role, by the names that the proxy sends."""
    found: dict[str, Role] = {}
    wanted: tuple[tuple[Role, Sequence[str]], ...] = (
        ("operator", served.proxy_operators),
        ("admin", served.proxy_admins),
    )
    for role, names in wanted:
        for name in names:
            where, is_named, who = name.rpartition("=") if database else ("", "", name)
            if not is_named or where == database:
                found[who] = role
    return found


def check_roles(names: Collection[str], served: Served) -> None:
    for name in (*served.proxy_operators, *served.proxy_admins):
        where, is_named, _ = name.rpartition("=")
        if any(names) and is_named and where not in names:
            raise ConfigurationError(f"there is no database {where!r} (known: {', '.join(names)})")


def make(app: Apps, served: Served) -> tuple[Dashboard, OneTimeUrl | None]:
    """An address other than this machine's own is served only to clients that can be identified."""
    names = tuple(app) if isinstance(app, Mapping) else ("",)
    check_roles(names, served)
    local = is_loopback(served.host)
    people = None if served.users is None else UsersFile(served.users)
    known = served.proxy_header is not None or served.token_hash is not None or people is not None
    if not local and not known:
        raise ConfigurationError(
            f"--host {served.host} can be reached by others, and nothing identifies them. Leave it at 127.0.0.1, "
            "name a proxy that checks them (--proxy-header X-Forwarded-User --proxy-address ADDRESS), or a file of "
            "names: --users FILE"
        )
    login = None
    if local and people is None:
        role: Role = "viewer" if served.read_only else "admin"
        login = OneTimeUrl(
            Identity(default_actor(), role),
            lambda token: say((served.host, served.port), token, "Another browser"),
        )
    ways = {name: first_of(*_ways(name, served, login, people)) for name in names}

    async def authorize(request: Request) -> Identity | None:
        return await identify(ways[database_of(request)], request)

    made = dashboard(
        app,
        authorize,
        read_only=served.read_only,
        hosts=[*LOOPBACK, served.host, *served.allowed_hosts],
        title=served.title,
        login=login,
        people=people,
        limits=served.limits,
        trace_url=served.trace_url,
        named=served.named,
        proxies=Proxies(served.proxy_addresses) if served.proxy_addresses else None,
    )
    return made, login


def _ways(
    database: str, served: Served, login: OneTimeUrl | None, people: UsersFile | None
) -> list[Authorize]:
    ways: list[Authorize] = []
    if served.proxy_header is not None:
        roles = roles_in(database, served)
        ways.append(ProxyHeader(served.proxy_header, served.proxy_addresses, roles=roles))
    if served.token_hash is not None:
        ways.append(BearerTokens({served.token_hash: Identity("token", "operator")}))
    return [*ways, *(one for one in (people, login) if one is not None)]


def say(where: tuple[str, int], token: str, what: str) -> None:
    host = f"[{where[0]}]" if ":" in where[0] else where[0]
    text = f"{what}: http://{host}:{where[1]}/login?token={token}   (good once)"
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def serve(app: Apps, served: Served) -> None:
    """Until it is asked to stop."""
    made, login = make(app, served)
    with listening(served.host, served.port) as sock:
        _announce(made, login, served)
        asgi_server(made).run(sockets=[sock])


@contextlib.contextmanager
def beside(app: Apps, served: Served) -> Iterator[None]:
    """In a thread of its own, beside whatever else this process does."""
    made, login = make(app, served)
    with listening(served.host, served.port) as sock:
        server = asgi_server(made)
        thread = threading.Thread(
            target=server.run, kwargs={"sockets": [sock]}, name="dashboard", daemon=True
        )
        _announce(made, login, served)
        thread.start()
        try:
            yield
        finally:
            server.should_exit = True
            thread.join(_LAST)


def asgi_server(made: ASGIApp) -> uvicorn.Server:
    config = uvicorn.Config(
        made,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_LAST,
        lifespan="on",
    )
    return uvicorn.Server(config)


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A port that is taken is reported before anything starts. A client that comes before the server does waits for it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
            sock.listen()
        except OSError as error:
            raise ConfigurationError(
                f"port {port} on {host} cannot be listened on: {error.strerror}. Choose another: --port"
            ) from None
        yield sock


def _announce(made: Dashboard, login: OneTimeUrl | None, served: Served) -> None:
    for site in made.sites:
        site.reading.dsn  # noqa: B018 an embedded server starts now, and a wrong address is reported at once
    if login is not None:
        say((served.host, served.port), login.token, "Holdfast dashboard")
    else:
        print(f"Holdfast dashboard: port {served.port} on {served.host}", file=sys.stderr, flush=True)  # noqa: T201
