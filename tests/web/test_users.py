"""`holdfast web --users FILE`: who comes in by a password or a token, how often one may guess, and who is out again."""

import asyncio
import io
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from tests.surface.running import Cli
from tests.web.surfing import Surfer

from holdfast import Holdfast
from holdfast.errors import ConfigurationError
from holdfast.pages import Role
from holdfast.testing import Kit
from holdfast.web import hashed, users
from holdfast.web.application import Dashboard
from holdfast.web.serve import Served, make
from holdfast.web.users import UsersFile, fits_password, new_line, read_users

PASSWORD = "correct horse battery"
TOKEN = "a-token-of-more-than-twenty-letters"
CHEAP = (2, 1, 1)


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hash that takes no time: what it costs is no matter of these tests, but of one."""
    monkeypatch.setattr(users, "_COST", CHEAP)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "users"
    lines = [new_line("mara", "admin", PASSWORD), new_line("vera", "viewer", PASSWORD)]
    found.write_text("# who may come in\n\n" + "\n".join([*lines, f"ci operator {hashed(TOKEN)}"]) + "\n")
    return found


@pytest.fixture
async def made(kit: Kit, file: Path) -> AsyncIterator[Dashboard]:
    found, login = make(kit.app, Served(host="10.0.0.7", users=str(file), allowed_hosts=["testserver"]))
    assert login is None
    yield found
    await found.close()
    await kit.database.aclose()


async def enter(surfer: Surfer, name: str, password: str, at: str = "/login") -> httpx.Response:
    """As the page of ours sends it."""
    form = dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', await surfer.page(at)))
    return await surfer.post("/login", {**form, "name": name, "password": password})


async def test_a_name_and_a_password_let_somebody_in_as_what_the_file_says(made: Dashboard) -> None:
    mara, vera = Surfer(made), Surfer(made)
    refused = await mara.get("/jobs?state=dead")
    assert (refused.status_code, 'href="/login?back=jobs%3Fstate%3Ddead"' in refused.text) == (401, True)
    answer = await enter(mara, "mara", PASSWORD, "/login?back=jobs%3Fstate%3Ddead")
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?state=dead")
    cookie = answer.headers["set-cookie"].lower()
    assert ("httponly" in cookie, "samesite=lax" in cookie) == (True, True)
    assert "mara" in await mara.page("/settings")
    assert (await mara.get("/acts/queue-create")).status_code == 200
    assert (await enter(vera, "vera", PASSWORD)).status_code == 303
    assert (await vera.get("/acts/queue-create")).status_code == 403
    assert (await vera.get("/api/v1/jobs")).status_code == 200


@pytest.mark.parametrize(
    ("name", "password"),
    [("mara", "wrong"), ("mara", ""), ("", PASSWORD), ("nobody", PASSWORD), ("ci", TOKEN), ("Mara", PASSWORD),
     ("<script>alert(1)</script>", "\x00\ud83d")],
)  # fmt: skip
async def test_who_is_wrong_stays_outside_and_learns_nothing(
    made: Dashboard, name: str, password: str
) -> None:
    surfer = Surfer(made)
    answer = await enter(surfer, name, password.encode("utf-8", "ignore").decode())
    assert (answer.status_code, "The name or the password is wrong." in answer.text) == (401, True)
    assert "<script>alert" not in answer.text
    assert (await surfer.get("/")).status_code == 401


async def test_ten_wrong_passwords_and_nobody_of_this_address_is_looked_at(made: Dashboard) -> None:
    """Also when they are sent at the same time: each waits for its turn, and is counted before the next."""
    surfer = Surfer(made)
    form = dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', await surfer.page("/login")))
    guesses = [surfer.post("/login", {**form, "name": "mara", "password": f"guess {n}"}) for n in range(40)]
    said = [answer.status_code for answer in await asyncio.gather(*guesses)]
    assert said.count(401) <= 10 + 2 - 1  # two are looked at beside each other
    assert said.count(429) == 40 - said.count(401)
    answer = await surfer.post("/login", {**form, "name": "mara", "password": PASSWORD})
    assert (answer.status_code, "wrong passwords came from this address" in answer.text) == (429, True)
    assert int(answer.headers["retry-after"]) <= 60
    assert (await surfer.get("/")).status_code == 401


async def test_the_form_is_taken_from_our_own_page_alone(made: Dashboard) -> None:
    """A stranger's page signs nobody in: neither as somebody else, nor out."""
    surfer = Surfer(made)
    text = await surfer.page("/login")
    form = dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', text))
    right = {**form, "name": "mara", "password": PASSWORD}
    evil = {"origin": "http://evil.example"}
    answers = [
        await surfer.post("/login", right, **evil),
        await surfer.post("/login", {**right, "csrf": "0.0"}),
        await surfer.client.post("/login", data=right),
        await Surfer(made).post("/login", right),  # the mark of another browser
    ]
    assert [answer.status_code for answer in answers] == [403] * 4
    assert (await surfer.get("/")).status_code == 401
    assert (await enter(surfer, "mara", PASSWORD)).status_code == 303
    assert (await surfer.post("/logout", {}, **evil)).status_code == 403
    assert (await surfer.get("/")).status_code == 200


@pytest.mark.parametrize(
    "back", ["//evil.example/", "https://evil.example", "\\\\evil.example", "/\t/evil.example"]
)
async def test_nobody_is_sent_to_another_site_when_he_comes_in(made: Dashboard, back: str) -> None:
    surfer = Surfer(made)
    form = dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', await surfer.page("/login")))
    sent = {**form, "back": back, "name": "mara", "password": PASSWORD}
    where = (await surfer.post("/login", sent)).headers["location"]
    assert re.match(r"/(?![/\\\t])", where), where


async def test_who_signs_out_is_out(made: Dashboard) -> None:
    surfer = Surfer(made)
    await enter(surfer, "mara", PASSWORD)
    session = surfer.client.cookies["holdfast_session"]
    assert 'action="/logout"' in await surfer.page("/settings")
    answer = await surfer.post("/logout", {})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    surfer.client.cookies.set("holdfast_session", session)  # whoever kept the cookie
    assert (await surfer.get("/")).status_code == 401


async def test_a_session_ends_by_itself(kit: Kit, file: Path) -> None:
    clock = [0.0]
    way = UsersFile(str(file), now=lambda: clock[0])
    session = await way.enter("mara", PASSWORD, lambda: None)
    headers = [(b"cookie", f"holdfast_session={session}".encode())]
    scope = {"type": "http", "headers": headers, "path": "/", "query_string": b""}
    found = way(Request(scope))
    assert found is not None
    assert found.name == "mara"
    clock[0] = 12 * 3600.0
    assert way(Request(scope)) is None


async def test_the_file_is_read_again_when_it_changes(
    made: Dashboard, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who is no longer in it, or is less than he was, is so with the next request; a bad line keeps no other out."""
    mara, vera = Surfer(made), Surfer(made)
    await enter(mara, "mara", PASSWORD)
    await enter(vera, "vera", PASSWORD)
    (line,) = (one for one in file.read_text().splitlines() if one.startswith("mara "))
    file.write_text("nonsense\n" + line.replace(" admin ", " viewer ") + "\n")
    assert (await vera.get("/")).status_code == 401
    assert (await mara.get("/")).status_code == 200
    assert (await mara.get("/acts/queue-create")).status_code == 403
    assert "line 1: a line is NAME ROLE HASH, perhaps with until=DAY, and this one has 1 word" in caplog.text
    file.unlink()
    assert (await mara.get("/")).status_code == 401
    assert "cannot be read: No such file or directory" in caplog.text
    file.write_text(line)
    assert (await mara.get("/")).status_code == 200


async def test_a_token_of_the_file_is_for_programs(made: Dashboard) -> None:
    surfer = Surfer(made)
    right = {"authorization": f"Bearer {TOKEN}"}
    assert (await surfer.get("/api/v1/queues", **right)).status_code == 200
    assert (await surfer.get("/api/v1/queues", authorization="Bearer wrong")).status_code == 401
    answer = await surfer.client.post("/api/v1/acts/queue-pause", json={"queue": "mail"}, headers=right)
    assert answer.status_code == 200
    answer = await surfer.client.post("/api/v1/acts/jobs-discard", json={"state": "dead"}, headers=right)
    assert answer.status_code == 403


async def test_nobody_comes_in_after_the_last_day(made: Dashboard, file: Path) -> None:
    """Neither by a password, nor by a token, nor by a session that was begun before."""
    today = datetime.now(UTC).date()
    lines = [new_line("mara", "admin", PASSWORD), f"ci operator {hashed(TOKEN)}"]
    surfer = Surfer(made)
    token = {"authorization": f"Bearer {TOKEN}"}
    file.write_text("\n".join(f"{line} until={today + timedelta(days=1)}" for line in lines))
    assert (await enter(surfer, "mara", PASSWORD)).status_code == 303
    assert (await surfer.get("/api/v1/queues", **token)).status_code == 200
    file.write_text("\n".join(f"{line} until={today - timedelta(days=1)}" for line in lines))
    assert (await surfer.get("/")).status_code == 401
    assert (await surfer.get("/api/v1/queues", **token)).status_code == 401
    assert (await enter(Surfer(made), "mara", PASSWORD)).status_code == 401


async def test_several_databases_have_one_way_in(kit: Kit, file: Path) -> None:
    apps = {"shop": kit.app, "other": Holdfast(kit.url)}
    made, _ = make(apps, Served(users=str(file)))
    surfer = Surfer(made, "http://localhost")
    refused = await surfer.get("/d/shop/jobs")
    assert (refused.status_code, 'href="/login?back=d%2Fshop%2Fjobs"' in refused.text) == (401, True)
    answer = await enter(surfer, "mara", PASSWORD, "/login?back=d%2Fshop%2Fjobs")
    assert answer.headers["location"] == "/d/shop/jobs"
    assert 'action="/logout"' in await surfer.page("/d/other/settings")
    await made.close()
    for app in apps.values():
        await app.database.aclose()


# The file --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "names nobody. Make a line: holdfast web --new-user NAME=ROLE"),
        ("mara admin", "line 1: a line is NAME ROLE HASH, perhaps with until=DAY, and this one has 2 words"),
        ("\nmara admin hunter2", "line 2: the hash of 'mara' is neither scrypt:... nor sha256:..."),
        (f"mara boss {hashed('x')}", "line 1: there is no role 'boss' (known: viewer, operator, admin)"),
        (
            f"m admin {hashed('x')} until=soon",
            "line 1: until= takes a day such as until=2027-01-31, not 'until=soon'",
        ),
        (f"m admin {hashed('x')} 2027-01-31", "line 1: until= takes a day"),
        (f"m admin {hashed('x')}\nm admin {hashed('y')}", "line 2: m is there twice"),
        (f"m admin scrypt:{2**19}:8:1:{'0' * 32}:{'0' * 64}", "line 1: the hash of 'm' is neither"),
        (f"m admin scrypt:3:1:1:{'0' * 32}:{'0' * 64}", "line 1: the hash of 'm' is neither"),
    ],
)
def test_a_file_that_is_wrong_is_refused_when_it_is_served(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "users"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        UsersFile(str(file))
    assert sentence in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_file_that_everybody_may_write_or_nobody_can_read_is_refused(file: Path, tmp_path: Path) -> None:
    file.chmod(0o666)
    with pytest.raises(ConfigurationError, match="can be written by everybody: chmod o-w"):
        UsersFile(str(file))
    with pytest.raises(ConfigurationError, match="cannot be read: No such file or directory"):
        UsersFile(str(tmp_path / "none"))


def test_a_hash_fits_its_password_alone_and_costs_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    line = new_line("mara", "admin", PASSWORD)
    assert line != new_line("mara", "admin", PASSWORD)  # each has its own salt
    assert line.startswith("mara admin scrypt:32768:8:3:")
    known, faults = read_users(line)
    assert faults == []
    secret = known.passwords["mara"].secret
    assert [fits_password(one, secret) for one in (PASSWORD, PASSWORD + " ", "")] == [True, False, False]


@pytest.mark.parametrize(
    ("name", "role", "password", "sentence"),
    [
        ("mara", "admin", "short", "a password has 12 to 1000 characters, and this one has 5"),
        ("mara", "boss", PASSWORD, "there is no role 'boss'"),
        ("ma ra", "admin", PASSWORD, "has no spaces and no # before it"),
        ("#mara", "admin", PASSWORD, "has no spaces and no # before it"),
        ("", "admin", PASSWORD, "an identity needs a name"),
    ],
)
def test_somebody_who_cannot_be_in_the_file(name: str, role: Role, password: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        new_line(name, role, password)


def test_the_command_makes_a_line(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{PASSWORD}\n"))
    line = Cli(dsn, monkeypatch).text("web", "--new-user", "mara=admin")
    known, faults = read_users(line)
    assert (list(known.passwords), faults) == (["mara"], [])
    assert fits_password(PASSWORD, known.passwords["mara"].secret)


async def test_another_password_ends_the_sessions_of_the_one_before(made: Dashboard, file: Path) -> None:
    mara, vera = Surfer(made), Surfer(made)
    assert (await enter(mara, "mara", PASSWORD)).status_code == 303
    assert (await enter(vera, "vera", PASSWORD)).status_code == 303
    lines = [line for line in file.read_text().splitlines() if not line.startswith("mara")]
    file.write_text("\n".join([*lines, new_line("mara", "admin", "another horse battery")]))
    assert (await mara.get("/jobs")).status_code == 401
    assert (await vera.get("/jobs")).status_code == 200
    assert (await enter(mara, "mara", "another horse battery")).status_code == 303
    assert (await mara.get("/jobs")).status_code == 200
