"""One look serves everybody who looks, and a stream sends names and values."""

import asyncio
import json
from typing import Any

import pytest
from tests.conftest import within
from tests.web.conftest import Shop
from tests.web.surfing import Surfer

from holdfast.errors import DatabaseError
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure
from holdfast.testing import Kit
from holdfast.web import live
from holdfast.web.application import Dashboard
from holdfast.web.snapshots import Snapshots
from holdfast.web.views.drawn import later
from holdfast.web.views.overview import numbers_of


async def test_a_hundred_who_look_cost_one_look() -> None:
    made, looks = Snapshots(), 0
    gate = asyncio.Event()

    async def look() -> int:
        nonlocal looks
        looks += 1
        await gate.wait()
        return looks

    waiting = [asyncio.ensure_future(made.get("overview", 60, look)) for _ in range(100)]
    await asyncio.sleep(0)
    gate.set()
    assert await asyncio.gather(*waiting) == [1] * 100
    assert await made.get("overview", 60, look) == 1
    assert await made.get("overview", 0, look) == 2
    made.forget()
    assert await made.get("overview", 60, look) == 3


async def test_what_took_long_to_read_lasts_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now, looks = 100.0, 0
    monkeypatch.setattr("holdfast.web.snapshots.time.monotonic", lambda: now)
    made = Snapshots()

    async def look() -> int:
        nonlocal looks, now
        looks, now = looks + 1, now + 0.04
        return looks

    assert await made.get("quick", 1, look, share=0.02) == 1
    now += 1.9
    assert await made.get("quick", 1, look, share=0.02) == 1, "40 ms are 2 % of two seconds"
    assert await made.get("quick", 1, look) == 2, "another topic would ask each second"
    now += 2.1
    assert await made.get("quick", 1, look, share=0.02) == 3
    now += 4.9
    assert await made.get("quick", 1, look, share=0.0001) == 3
    now += 0.2
    assert await made.get("quick", 1, look, share=0.0001) == 4, "data last five seconds at most"
    now += 59.0
    assert await made.get("quick", 1, look, share=0.0001, longest=60.0) == 4
    now += 1.1
    assert await made.get("quick", 1, look, share=0.0001, longest=60.0) == 5


async def test_one_who_goes_away_takes_nothing_from_the_others() -> None:
    made, gate = Snapshots(), asyncio.Event()

    async def look() -> str:
        await gate.wait()
        return "seen"

    first = asyncio.ensure_future(made.get("x", 60, look))
    second = asyncio.ensure_future(made.get("x", 60, look))
    await asyncio.sleep(0)
    first.cancel()
    gate.set()
    assert await second == "seen"


async def test_a_look_that_fails_is_made_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    made, looks = Snapshots(), 0

    async def fail() -> str:
        nonlocal looks
        looks += 1
        raise ValueError("away")

    async def look() -> str:
        return "seen"

    for _ in range(3):
        with pytest.raises(ValueError, match="away"):
            await made.get("x", 60, fail)
    assert looks == 1
    monkeypatch.setattr("holdfast.web.snapshots.FAILED", 0.0)
    assert await made.get("x", 60, look) == "seen"


async def test_a_look_under_way_does_not_outlive_an_act() -> None:
    made, gate = Snapshots(), asyncio.Event()

    async def before() -> str:
        await gate.wait()
        return "before"

    async def after() -> str:
        return "after"

    first = asyncio.ensure_future(made.get("x", 60, before))
    await asyncio.sleep(0)
    made.forget()
    async with asyncio.timeout(within(4)):
        assert await made.get("x", 60, after) == "after"
    gate.set()
    assert await first == "before"
    assert await made.get("x", 60, before) == "after"


async def test_what_is_old_serves_while_a_new_look_is_made() -> None:
    made, gate = Snapshots(), asyncio.Event()

    async def first() -> str:
        return "old"

    async def slow() -> str:
        await gate.wait()
        return "new"

    assert await made.get("x", 0, first) == "old"
    assert await made.get("x", 0, slow, 60) == "old"
    gate.set()
    async with asyncio.timeout(within(4)):
        while made.last("x") != "new":  # noqa: ASYNC110 the look is nobody's to wait for
            await asyncio.sleep(0)
    made.forget()
    assert await made.get("x", 60, first, 60) == "old", "after an act nobody is served what was before"


async def test_what_can_be_done_without_is_not_waited_for() -> None:
    made, gate = Snapshots(), asyncio.Event()

    async def never() -> str:
        await gate.wait()
        return "late"

    async def fail() -> str:
        raise ValueError("away")

    async def look() -> str:
        return "seen"

    assert await made.soon("x", 60, never, 0.01) is None
    made.forget()
    assert await made.soon("x", 60, look, 10) == "seen"
    made.forget()
    assert await made.soon("x", 60, fail, 10) == "seen"
    gate.set()


@pytest.mark.parametrize("how", ["slow", "failing"])
async def test_a_slow_overview_takes_no_other_page_with_it(
    mara: Surfer, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def numbers(_: object) -> Procedure[object]:
        if how == "failing":
            raise DatabaseError("canceling statement due to statement timeout")
        return (yield from later(asyncio.Event().wait))

    monkeypatch.setattr("holdfast.web.views.overview._numbers", numbers)
    async with asyncio.timeout(within(10)):
        assert "Settings" in await mara.page("/settings")


async def test_fifty_tabs_of_the_overview_are_one_look(dashboard: Dashboard) -> None:
    await asyncio.gather(*(numbers_of(dashboard.site) for _ in range(50)))
    assert dashboard.site.snapshots.looks == 3, "one, and one each of what is read less often"


async def test_what_workers_run_is_counted_apart_from_who_they_are(
    dashboard: Dashboard, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To count it, each job of their claims is looked up: beside a drain that takes longer than all else."""
    monkeypatch.setattr("holdfast.web.views.overview.LASTS", 0.0)
    monkeypatch.setattr("holdfast.web.views.overview.REST_LASTS", 0.0)
    monkeypatch.setattr("holdfast.web.views.overview.RUNNING_SHARE", 1e-9)  # the count lasts
    job = await asyncio.to_thread(kit.app.send, "send", {"order_id": 1})

    def begin() -> None:
        kit.sql(
            "INSERT INTO holdfast.workers (id, host, pid, last_seen_at, started_at, queues, tasks, concurrency, release) "
            "VALUES ('w:1:1', 'w', 1, now(), now(), '{inbox}', '{send}', 4, 'r')"
        )
        kit.sql(
            "INSERT INTO holdfast.claims (token, worker, queue, job_ids, claimed_at, lease_expires_at) "
            f"VALUES (gen_random_uuid(), 'w:1:1', 'inbox', ARRAY['{job.id}']::uuid[], now(), now() + interval '1 minute')"
        )
        kit.sql(
            "UPDATE holdfast.work w SET status = 'processing', claim_token = c.token FROM holdfast.claims c "
            f"WHERE w.queue = 'inbox' AND w.id = '{job.id}'"
        )

    await asyncio.to_thread(begin)
    (line,) = (await numbers_of(dashboard.site)).workers
    assert (line.id, line.running) == ("w:1:1", 1)
    await asyncio.to_thread(kit.sql, "DELETE FROM holdfast.claims")
    await asyncio.to_thread(kit.sql, "UPDATE holdfast.workers SET status = 'draining'")
    (line,) = (await numbers_of(dashboard.site)).workers
    assert (line.status, line.running) == ("draining", 1)
    dashboard.site.snapshots.forget()
    (line,) = (await numbers_of(dashboard.site)).workers
    assert (line.status, line.running) == ("draining", 0)


async def _frames(dashboard: Dashboard, topics: list[str], most: int) -> list[dict[str, Any]]:
    found = []
    frames = live._frames(dashboard.site, topics)
    async for frame in frames:
        head, _, data = frame.decode().partition("\ndata: ")
        found.append({"event": head.removeprefix("event: "), **json.loads(data or "{}")})
        if len(found) == most:
            break
    await frames.aclose()  # type: ignore[attr-defined]
    return found


async def test_a_stream_sends_what_changed(
    dashboard: Dashboard, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "EVERY", 0.05)
    monkeypatch.setattr("holdfast.web.views.overview.LASTS", 0.0)
    frames = live._frames(dashboard.site, ["overview"])
    first = json.loads((await anext(frames)).decode().partition("data: ")[2])
    assert (first["due"], first["q.mail.due"]) == ("0", "0")
    assert first["oldest.queue"] == "nothing waits"
    kit.app.send("send", {"order_id": 1}, queue="mail")
    async for frame in frames:
        changed = json.loads(frame.decode().partition("data: ")[2] or "{}")
        if "due" in changed:
            assert (changed["due"], changed["q.mail.due"]) == ("1", "1")
            assert changed["oldest.queue"] == "mail", "the number and whose it is change together"
            assert "running" not in changed
            break
    await frames.aclose()  # type: ignore[attr-defined]


async def test_a_stream_of_a_job(dashboard: Dashboard, shop: Shop) -> None:
    (frame,) = await _frames(dashboard, [f"job:{shop.waiting}"], 1)
    assert (frame["event"], frame["job.state"], frame["job.attempts"]) == ("values", "scheduled", "0 of 5")


@pytest.mark.parametrize(
    ("topics", "said"),
    [
        ("nonsense", "there is no topic"),
        ("job:1", "is not the id of a job"),
        (",".join(["overview"] * 9), "too many"),
    ],
)
async def test_a_topic_that_is_none_is_refused(mara: Surfer, topics: str, said: str) -> None:
    answer = await mara.get(f"/live?topics={topics}")
    assert answer.status_code == 400
    assert said in answer.text.replace("There", "there").replace("&#39;", "'")


async def test_streams_have_an_end_to_their_number(mara: Surfer, dashboard: Dashboard) -> None:
    dashboard.site.streams["others"] = live.MOST_STREAMS
    async with asyncio.timeout(within(4)):  # a stream that is opened does not end
        assert (await mara.get("/live")).status_code == 503


async def test_nobody_takes_the_streams_of_all(mara: Surfer, dashboard: Dashboard) -> None:
    dashboard.site.streams["mara"] = live.MOST_EACH
    async with asyncio.timeout(within(4)):
        answer = await mara.get("/live")
    assert (answer.status_code, "20 streams open" in answer.text) == (429, True)


async def test_a_stream_ends_after_a_while_and_is_counted_until_then(
    mara: Surfer, dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = []

    async def values(*_: object) -> dict[str, str]:
        counted.append(dict(dashboard.site.streams))
        return {"due": "1"}

    monkeypatch.setattr(live, "EVERY", 0.01)
    monkeypatch.setattr(live, "LASTS", 0.05, raising=False)
    monkeypatch.setattr(live, "values_of", values)
    async with asyncio.timeout(within(4)):
        assert (await mara.get("/live")).status_code == 200
    assert counted[0] == {"mara": 1}
    assert not dashboard.site.streams


async def test_a_stream_says_that_the_database_is_back_and_that_it_is_there(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def values(*_: object) -> dict[str, str]:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise DatabaseError("away")
        return {"job.state": "scheduled"}

    monkeypatch.setattr(live, "EVERY", 0.01)
    monkeypatch.setattr(live, "QUIET", 0.03)
    monkeypatch.setattr(live, "values_of", values)
    first, away, back, quiet = await _frames(dashboard, ["overview"], 4)
    assert away["event"] == "away"
    assert first == back == {"event": "values", "job.state": "scheduled"}
    assert quiet == {"event": "values"}


async def test_a_browser_without_a_stream_asks_now_and_then(
    mara: Surfer, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that keeps a stream back, or no room for another one: the same numbers by a plain request."""
    monkeypatch.setattr(live, "MOST_STREAMS", 0)
    assert (await mara.get("/live?topics=overview")).status_code == 503
    found = (await mara.get(f"/live?poll=1&topics=overview,job:{shop.waiting},jobs&state=scheduled")).json()
    assert (found["workers"], found["job.state"]) == ("0", "scheduled")
    assert "q.mail.due" in found
    assert (await mara.get("/live?poll=1&topics=nothing")).status_code == 400


async def test_what_somebody_did_is_seen_at_once(mara: Surfer, dashboard: Dashboard, kit: Kit) -> None:
    await mara.page("/queues")
    csrf = (await mara.page("/queues")).split('name="csrf" value="')[1].split('"')[0]
    await mara.post("/acts/queue-pause", {"queue": "mail", "csrf": csrf, "back": "queues/mail"})
    assert "This queue is paused" in await mara.page("/queues/mail")
    assert Operator(kit.database, "t").list_audit(limit=1).entries[0].action == "queue pause"


async def test_a_stream_says_that_the_database_is_away(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.errors import DatabaseUnavailable

    async def away(*_: object) -> dict[str, str]:
        raise DatabaseUnavailable("no answer from postgresql://bo:pw@host")

    monkeypatch.setattr(live, "values_of", away)
    (frame,) = await _frames(dashboard, ["overview"], 1)
    assert frame["event"] == "away"
    assert "bo:pw" not in frame["sentence"]


async def test_a_program_that_has_what_there_is_gets_nothing_again(
    mara: Surfer, kit: Kit, shop: Shop
) -> None:
    first = await mara.get("/api/v1/jobs")
    tag = first.headers["etag"]
    again = await mara.get("/api/v1/jobs", **{"if-none-match": f'"other", {tag}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    await asyncio.to_thread(kit.app.send, "send", {"order_id": 9})
    other = await mara.get("/api/v1/jobs", **{"if-none-match": tag})
    assert other.status_code == 200
    assert other.headers["etag"] != tag
