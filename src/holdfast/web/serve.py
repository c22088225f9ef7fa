"""`holdfast web`: the dashboard in a process of its own."""

import contextlib
import ipaddress
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from holdfast.app import Holdfast
from holdfast.errors import ConfigurationError
from holdfast.operate.doctor.thresholds import Limits
from holdfast.pages import Role
from holdfast.settings import default_actor
from holdfast.web.application import Dashboard, dashboard
from holdfast.web.guard import LOOPBACK
from holdfast.web.identity import Authorize, BearerTokens, Identity, OneTimeUrl, ProxyHeader, first_of

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
    proxy_admins: Sequence[str] = ()
    token_hash: str | None = None
    title: str | None = None
    limits: Limits | None = None  # of the doctor
    named: str = "MODULE:APP"  # how commands name the app


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def make(app: Holdfast, served: Served) -> tuple[Dashboard, OneTimeUrl | None]:
    """Another address than this machine's own is served only to those who can be known."""
    ways: list[Authorize] = []
    if served.proxy_header is not None:
        roles: dict[str, Role] = dict.fromkeys(served.proxy_admins, "admin")
        ways.append(ProxyHeader(served.proxy_header, served.proxy_addresses, roles=roles))
    if served.token_hash is not None:
        ways.append(BearerTokens({served.token_hash: Identity("token", "operator")}))
    local = is_loopback(served.host)
    if not local and not ways:
        raise ConfigurationError(
            f"--host {served.host} can be reached by others, and nothing says who they are. Leave it at 127.0.0.1, "
            "or name a proxy that checks them: --proxy-header X-Forwarded-User --proxy-address ADDRESS"
        )
    login = None
    if local:
        role: Role = "viewer" if served.read_only else "admin"
        login = OneTimeUrl(
            Identity(default_actor(), role),
            lambda token: say((served.host, served.port), token, "Another browser"),
        )
        ways.append(login)
    hosts = [*LOOPBACK, served.host, *served.allowed_hosts]
    made = dashboard(
        app,
        first_of(*ways),
        read_only=served.read_only,
        hosts=hosts,
        title=served.title,
        login=login,
        limits=served.limits,
        named=served.named,
    )
    return made, login


def say(where: tuple[str, int], token: str, what: str) -> None:
    host = f"[{where[0]}]" if ":" in where[0] else where[0]
    text = f"{what}: http://{host}:{where[1]}/login?token={token}   (good once)"
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def serve(app: Holdfast, served: Served) -> None:
    """Until it is asked to stop."""
    made, login = make(app, served)
    with listening(served.host, served.port) as sock:
        _announce(made, login, served)
        asgi_server(made).run(sockets=[sock])


@contextlib.contextmanager
def beside(app: Holdfast, served: Served) -> Iterator[None]:
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
    """A port that is taken is said before anything starts."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            raise ConfigurationError(
                f"port {port} on {host} cannot be listened on: {error.strerror}. Choose another: --port"
            ) from None
        yield sock


def _announce(made: Dashboard, login: OneTimeUrl | None, served: Served) -> None:
    made.site.reading.dsn  # noqa: B018 an embedded server starts now, and a wrong address is said at once
    if login is not None:
        say((served.host, served.port), login.token, "Holdfast dashboard")
    else:
        print(f"Holdfast dashboard: port {served.port} on {served.host}", file=sys.stderr, flush=True)  # noqa: T201
