"""How often one may be wrong: by address, by all addresses together, and never at the cost of who is right elsewhere."""

import httpx
import pytest
from starlette.requests import Request

from holdfast import Holdfast
from holdfast.web import BearerTokens, Identity, first_of, hashed, holdfast_web
from holdfast.web.application import Dashboard, dashboard
from holdfast.web.attempts import _KEPT, ALL, EACH, MINUTE, Attempts
from holdfast.web.identity import OneTimeUrl

TOKEN = "a-token-of-more-than-twenty-letters"
AWAY = "postgresql://nobody@127.0.0.1:9/none"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def _ask(
    made: Dashboard, token: str, address: str = "10.0.0.1", path: str = "/api/v1/openapi.json"
) -> httpx.Response:
    transport = httpx.ASGITransport(app=made, client=(address, 1))
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
        return await client.get(path, headers=headers)


async def test_wrong_tokens_of_one_address_stop_that_address_alone() -> None:
    clock = Clock()
    made = holdfast_web(Holdfast(AWAY), authorize=BearerTokens({hashed(TOKEN): Identity("ci")}))
    made.site.attempts = Attempts(clock)
    assert (await _ask(made, TOKEN)).status_code == 200
    assert [(await _ask(made, "wrong")).status_code for _ in range(EACH)] == [401] * EACH
    refused = await _ask(made, "wrong")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, str(int(MINUTE)))
    assert refused.json()["reason"] == "too many requests"
    assert "Try again in 60 seconds" in refused.json()["detail"]
    assert (await _ask(made, TOKEN)).status_code == 429  # or it could go on to guess
    page = await _ask(made, "wrong", path="/settings")
    assert (page.status_code, "too many wrong tokens" in page.text.lower()) == (429, True)
    assert (await _ask(made, TOKEN, "10.0.0.2")).status_code == 200
    assert (await _ask(made, "", path="/settings")).status_code == 401  # who brings none is asked to sign in
    transport = httpx.ASGITransport(app=made, client=("10.0.0.3", 1))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://testserver", auth=("a", "b")
    ) as behind:
        said = [
            (await behind.get("/settings")).status_code for _ in range(EACH + 1)
        ]  # Basic is for a proxy before us
    assert set(said) == {401}
    clock.now += MINUTE
    assert (await _ask(made, TOKEN)).status_code == 200


async def test_wrong_tokens_of_many_addresses_leave_each_new_one_a_try() -> None:
    made = holdfast_web(Holdfast(AWAY), authorize=BearerTokens({hashed(TOKEN): Identity("ci")}))
    made.site.attempts = Attempts(Clock())
    for n in range(ALL):
        assert (await _ask(made, "wrong", f"10.0.1.{n}")).status_code == 401
    assert (await _ask(made, "wrong", "10.0.1.7")).status_code == 429
    assert (await _ask(made, TOKEN, "10.0.2.1")).status_code == 200
    assert (await _ask(made, "wrong", "10.0.2.2")).status_code == 401
    assert (await _ask(made, "wrong", "10.0.2.2")).status_code == 429


async def test_the_address_that_is_good_once_cannot_be_guessed_and_databases_count_together() -> None:
    way = OneTimeUrl(Identity("mara", "admin"))
    tokens = BearerTokens({hashed(TOKEN): Identity("ci")})
    made = dashboard({"a": Holdfast(AWAY), "b": Holdfast(AWAY)}, first_of(way, tokens), login=way)
    for n in range(EACH):
        path = (
            "/login?token=no",
            "/d/a/api/v1/openapi.json",
            "/d/b/api/v1/openapi.json",
            "/api/v1/databases",
        )[n % 4]
        assert (await _ask(made, "wrong", path=path)).status_code == 401
    for path in (f"/login?token={way.token}", "/d/a/jobs", "/d/b/jobs", "/"):
        assert (await _ask(made, TOKEN, path=path)).status_code == 429, path
    assert (await _ask(made, "", "10.0.0.2", f"/login?token={way.token}")).status_code == 303


def test_what_is_remembered_has_a_bound_and_a_house_is_one_address() -> None:
    clock = Clock()
    attempts = Attempts(clock)

    def request(host: str | None) -> Request:
        return Request({"type": "http", "headers": [], "client": None if host is None else (host, 1)})

    for n in range(_KEPT + 50):
        attempts.failed(request(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}"))
    assert len(attempts._wrong) == _KEPT
    clock.now += MINUTE
    for host in ("2001:db8::1", "::ffff:10.9.9.9", "unix", None):
        for _ in range(EACH):
            assert attempts.wait(request(host)) == 0.0
            attempts.failed(request(host))
        assert attempts.wait(request(host)) == pytest.approx(MINUTE)
    assert attempts.wait(request("2001:db8::ffff:2")) > 0  # the same /64
    assert attempts.wait(request("2001:db8:0:1::1")) == 0.0
    assert attempts.wait(request("10.9.9.9")) > 0
