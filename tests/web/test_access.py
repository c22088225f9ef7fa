"""Who comes in, and how far: every route by every role, and what a stranger's page or name can do."""

import re
from collections.abc import Callable

import httpx
import pytest
from starlette.requests import Request
from starlette.routing import Route
from tests.web.conftest import Shop
from tests.web.surfing import Surfer, made_for

from holdfast import Holdfast
from holdfast.errors import ConfigurationError
from holdfast.operate.operator import Operator
from holdfast.pages import ROLES, Role
from holdfast.testing import Kit
from holdfast.web import BearerTokens, Identity, ProxyHeader, first_of, hashed, holdfast_web
from holdfast.web.application import Dashboard, dashboard
from holdfast.web.attempts import Attempts
from holdfast.web.guard import CSRF, LOOPBACK, POLICY
from holdfast.web.identity import OneTimeUrl, Proxies
from holdfast.web.serve import Served, is_loopback, make

PUBLIC = ("/login", "/assets/{digest}/{name}")  # all others need a role
TOKEN = "a-token-of-more-than-twenty-letters"


def role_of(route: Route) -> Role:
    role: Role = route.endpoint.role  # type: ignore[attr-defined]
    return role


def test_every_route_names_its_role_and_only_two_need_none(app: Holdfast) -> None:
    made = made_for(app)
    without = [route.path for route in made.routes if not hasattr(route.endpoint, "role")]
    assert sorted(without) == sorted(PUBLIC)
    changing = [route for route in made.routes if "POST" in (route.methods or ())]
    own = [route for route in changing if role_of(route) == "viewer"]  # a view of one's own is nobody else's
    assert {route.path.rpartition("/")[2] for route in own} == {"view-save", "view-delete"}
    assert {role_of(route) for route in changing} == {"viewer", "operator", "admin"}
    by_name = [
        route for route in changing if route.path == "/api/v1/operations"
    ]  # it asks for the act's own role too
    assert [role_of(route) for route in by_name] == ["operator"]
    lists = {"/api/v1/jobs": "enqueue", "/api/v1/workflows/{run:path}/signals": "workflow signal"}
    also = {route.path: role_of(route) for route in changing if route.path in lists}
    assert also == {path: made.site.acts[act].role for path, act in lists.items()}
    assert len(changing) == 2 * len(made.site.acts) + len(by_name) + len(lists)


@pytest.mark.parametrize("role", [None, *ROLES])
async def test_every_route_by_every_role(kit: Kit, role: str | None) -> None:
    """Whoever may not is refused before anything is read; whoever may gets past the door, whatever comes then."""
    made = dashboard(kit.app, lambda _: None if role is None else Identity("somebody", role))  # type: ignore[arg-type]
    surfer = Surfer(made)
    for route in made.routes:
        if route.path in PUBLIC or route.path.endswith("/live"):
            continue
        needed = role_of(route)
        method = "POST" if "POST" in (route.methods or ()) else "GET"
        path = route.path.replace("{", "").replace("}", "").replace(":path", "")
        headers = {"origin": "http://testserver", "authorization": "Bearer none"}
        made.site.attempts = Attempts()  # who is wrong as often as here is stopped
        answer = await surfer.client.request(method, path, headers=headers)
        if role is None:
            assert answer.status_code == 401, path
        elif ROLES.index(role) < ROLES.index(needed):
            assert answer.status_code == 403, path
            assert f"needs the role {needed}" in answer.text
        else:
            assert answer.status_code not in (401,), path
            assert "needs the role" not in answer.text, path
    await made.site.close()


async def test_what_a_role_may_not_is_shown_and_said(surfer_of: Callable[..., Surfer], shop: Shop) -> None:
    text = await surfer_of("viewer").page("/queues")
    assert "Needs the role operator" in text
    assert '<form method="post"' not in text


# A stranger's page ---------------------------------------------------------------------------------------------------


async def _pause(surfer: Surfer, **headers: str) -> httpx.Response:
    text = await surfer.page("/queues")
    csrf = text.split('name="csrf" value="')[1].split('"')[0]
    return await surfer.client.post(
        "/acts/queue-pause", data={"queue": "mail", "csrf": csrf}, headers=headers
    )


def _paused(kit: Kit) -> bool:
    return any(load.paused_at for load in Operator(kit.database, "test").list_queues() if load.name == "mail")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://testserver"},
        {"origin": "http://testserver", "sec-fetch-site": "same-origin"},
        {"origin": "null", "sec-fetch-site": "same-origin"},
    ],
)
async def test_a_form_of_ours_is_taken(mara: Surfer, kit: Kit, headers: dict[str, str]) -> None:
    answer = await _pause(mara, **headers)
    assert answer.status_code == 303
    assert _paused(kit)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://testserver", "sec-fetch-site": "cross-site"},
        {"origin": "http://evil.example", "sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": "same-site"},
        {},
    ],
)
async def test_a_form_from_elsewhere_is_refused(mara: Surfer, kit: Kit, headers: dict[str, str]) -> None:
    answer = await _pause(mara, **headers)
    assert answer.status_code == 403
    assert not _paused(kit)


async def test_a_form_of_too_many_fields_is_refused(mara: Surfer) -> None:
    answer = await mara.post("/acts/queue-pause", {f"field{n}": "x" for n in range(201)})
    assert (answer.status_code, "A form has 200 fields at most." in answer.text) == (413, True)


async def test_a_form_without_the_mark_of_this_person_and_browser_is_refused(mara: Surfer, kit: Kit) -> None:
    await mara.page("/queues")
    for csrf in ("", "0" * 64):
        answer = await mara.post("/acts/queue-pause", {"queue": "mail", "csrf": csrf})
        assert answer.status_code == 403
    other = Surfer(mara.client._transport.app)  # type: ignore[attr-defined]
    stolen = (await other.page("/queues")).split('name="csrf" value="')[1].split('"')[0]
    assert (await mara.post("/acts/queue-pause", {"queue": "mail", "csrf": stolen})).status_code == 403
    assert not _paused(kit)


async def test_a_cookie_is_not_enough_for_the_api(mara: Surfer, kit: Kit) -> None:
    answer = await mara.client.post(
        "/api/v1/acts/queue-pause", json={"queue": "mail"}, headers={"origin": "http://testserver"}
    )
    assert answer.status_code == 403
    assert not _paused(kit)


# A stranger's name, and every answer's headers -----------------------------------------------------------------------


async def test_a_name_that_is_not_ours_is_refused(kit: Kit) -> None:
    made = made_for(kit.app, hosts=LOOPBACK)
    for host, status in (
        ("127.0.0.1:8765", 200),
        ("localhost", 200),
        ("[::1]:80", 200),
        ("evil.example", 421),
        ("", 421),
    ):
        answer = await Surfer(made, "http://127.0.0.1").get("/settings", host=host)
        assert answer.status_code == status, host
    await made.site.close()


@pytest.mark.parametrize(
    "path", ["/", "/login", "/jobs/nonsense", "/api/v1/queues", "/no/such", "/assets/x/y"]
)
async def test_every_answer_has_the_policy(mara: Surfer, path: str) -> None:
    headers = (await mara.get(path)).headers
    assert headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"


# Ways to be known ----------------------------------------------------------------------------------------------------


def _request(client: str = "10.0.0.5", **headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": raw, "client": (client, 1)})


def test_a_proxy_is_believed_from_its_addresses_alone() -> None:
    way = ProxyHeader("X-User", ["10.0.0.0/29"], roles={"mara": "admin"})
    assert way(_request(x_user="mara")) == Identity("mara", "admin")
    assert way(_request(x_user="bo")) == Identity("bo", "viewer")
    assert way(_request("10.0.0.9", x_user="mara")) is None
    assert way(_request("::ffff:10.0.0.5", x_user="mara")) == Identity("mara", "admin")
    assert way(_request("::ffff:10.0.0.9", x_user="mara")) is None
    assert ProxyHeader("X-User", ["::ffff:10.0.0.5"])(_request("::ffff:10.0.0.5", x_user="bo")) is not None
    assert way(_request("nonsense", x_user="mara")) is None
    assert way(_request()) is None
    twice = Request(
        {"type": "http", "headers": [(b"x-user", b"bo"), (b"x-user", b"mara")], "client": ("10.0.0.5", 1)}
    )
    assert way(twice) is None
    assert ProxyHeader("X-User", ["10.0.0.5"], role=None)(_request(x_user="bo")) is None
    with pytest.raises(ConfigurationError, match="needs the addresses of the proxy"):
        ProxyHeader("X-User", [])


@pytest.mark.parametrize(
    ("peer", "said", "client"),
    [
        ("10.0.0.5", "203.0.113.9", "203.0.113.9"),
        (
            "10.0.0.5",
            "198.51.100.1, 203.0.113.9",
            "203.0.113.9",
        ),  # what stands before it anybody can have written
        ("10.0.0.5", "203.0.113.9, 10.0.0.6", "203.0.113.9"),  # two proxies
        ("10.0.0.5", "", "10.0.0.5"),
        ("10.0.0.5", "somebody", "10.0.0.5"),
        ("10.0.0.5", "10.0.0.6", "10.0.0.6"),
        ("192.0.2.7", "203.0.113.9", "192.0.2.7"),  # no proxy of ours
    ],
)
def test_who_is_behind_a_proxy_is_believed_from_its_addresses_alone(
    peer: str, said: str, client: str
) -> None:
    headers = {"x_forwarded_for": said} if said else {}
    assert Proxies(["10.0.0.0/29"]).client_of(_request(peer, **headers)) == client


async def test_behind_a_proxy_the_audit_and_the_limit_go_by_who_is_behind_it(kit: Kit) -> None:
    tokens = BearerTokens({hashed(TOKEN): Identity("ci", "operator")})
    made = dashboard(kit.app, tokens, proxies=Proxies(["127.0.0.1"]))

    async def ask(token: str, client: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {token}", "x-forwarded-for": client}
        return await Surfer(made).client.post(
            "/api/v1/acts/queue-pause", json={"queue": "mail"}, headers=headers
        )

    assert [(await ask("wrong", "203.0.113.9")).status_code for _ in range(11)] == [401] * 10 + [429]
    assert (await ask(TOKEN, "203.0.113.10")).status_code == 200  # the proxy is not locked out with him
    (line,) = kit.sql("SELECT host(address) AS address FROM holdfast.audit")
    assert line["address"] == "203.0.113.10"
    await made.site.close()
    await kit.database.aclose()


async def test_a_cookie_of_a_page_that_came_by_tls_goes_by_tls_alone(mara: Surfer, kit: Kit) -> None:
    """Behind a proxy that ends TLS we are asked in plain HTTP; the browser says where its page came from."""
    csrf = re.findall(r'name="csrf" value="([^"]*)"', await mara.page("/queues/mail"))[0]
    headers = {"origin": "https://testserver", "sec-fetch-site": "same-origin"}
    answer = await mara.post("/acts/queue-pause", {"queue": "mail", "csrf": csrf}, **headers)
    assert answer.status_code == 303, answer.text[-300:]
    assert all("secure" in one.lower() for one in answer.headers.get_list("set-cookie"))


def test_a_token_is_known_by_its_hash() -> None:
    way = BearerTokens({hashed(TOKEN): Identity("ci", "operator")})
    assert way(_request(authorization=f"Bearer {TOKEN}")) == Identity("ci", "operator")
    assert way(_request(authorization=f"bearer {TOKEN}")) == Identity("ci", "operator")
    assert way(_request(authorization="Bearer wrong")) is None
    assert way(_request(authorization=f"Basic {TOKEN}")) is None
    assert way(_request()) is None
    with pytest.raises(ConfigurationError, match="at least 20 characters"):
        BearerTokens({"short": Identity("ci")})


async def test_an_address_is_good_once(kit: Kit) -> None:
    said: list[str] = []
    login = OneTimeUrl(Identity("me@here", "admin"), said.append)
    made = dashboard(kit.app, first_of(login), login=login)
    token = login.token
    mine, other = Surfer(made), Surfer(made)
    assert (await mine.get("/")).status_code == 401
    assert (await mine.get("/login?token=wrong")).status_code == 401
    answer = await mine.get(f"/login?token={token}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert ("HttpOnly" in cookie, "samesite=lax" in cookie.lower()) == (True, True)
    assert (await mine.get("/settings")).status_code == 200
    assert (await other.get(f"/login?token={token}")).status_code == 401
    assert said == [login.token]
    assert (await other.get(f"/login?token={said[0]}")).status_code == 303
    await made.site.close()


def test_another_address_than_this_machine_needs_somebody_to_be_known(app: Holdfast) -> None:
    assert [is_loopback(h) for h in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "10.0.0.1", "evil")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"--host 0\.0\.0\.0 can be reached by others"):
        make(app, Served(host="0.0.0.0"))
    _, login = make(app, Served(host="0.0.0.0", proxy_header="X-User", proxy_addresses=["10.0.0.5"]))
    assert login is None


def test_a_dashboard_without_a_way_to_know_people_is_refused(app: Holdfast) -> None:
    with pytest.raises(ConfigurationError, match="needs authorize="):
        holdfast_web(app)
    with pytest.raises(ConfigurationError, match="pass one of them"):
        holdfast_web(app, authorize=lambda _: None, auth=lambda _: None)


async def test_auth_is_a_short_name_for_authorize(kit: Kit) -> None:
    made = holdfast_web(kit.app, auth=lambda _: Identity("ada", "viewer"))
    assert (await Surfer(made).get("/")).status_code == 200
    refusing = holdfast_web(kit.app, auth=lambda _: None)
    assert (await Surfer(refusing).get("/")).status_code == 401


async def test_a_function_that_returns_something_else_lets_nobody_in(kit: Kit) -> None:
    made: Dashboard = holdfast_web(kit.app, authorize=lambda _: True)  # type: ignore[arg-type, return-value]
    answer = await Surfer(made).get("/")
    assert answer.status_code == 400
    assert "must return an Identity" in answer.text


@pytest.mark.parametrize("name", ["", "a\x00b", "x" * 300, "\u202eevil"])
def test_a_name_that_cannot_be_in_the_audit_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="needs a name"):
        Identity(name)


# Read-only -----------------------------------------------------------------------------------------------------------


async def test_read_only_is_refused_by_the_server_and_by_the_database(kit: Kit, shop: Shop) -> None:
    made = made_for(kit.app, read_only=True)
    surfer = Surfer(made)
    text = await surfer.page("/queues")
    assert "This dashboard is read-only" in text
    assert (await surfer.get("/acts/jobs-retry?ids=1")).status_code == 403
    mark = made.site.csrf.mark(surfer.client.cookies[CSRF], "mara")  # a form that is right in all else
    answer = await surfer.post("/acts/queue-pause", {"queue": "mail", "csrf": mark})
    assert (answer.status_code, "This dashboard is read-only." in answer.text) == (403, True)
    with pytest.raises(Exception, match="read-only transaction"):
        await made.site.look(Operator.pause_queue.procedure("mail"))
    assert not _paused(kit)
    await made.site.close()
