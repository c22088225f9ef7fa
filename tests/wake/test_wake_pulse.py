"""A sleeping worker asks one statement per heartbeat, and everything that it is there for goes on."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.conftest import QUICK, await_until
from tests.wake.conftest import Notes, until_asleep, working

from holdfast import Holdfast, Settings, telemetry
from holdfast.db.session import Session
from holdfast.runtime import pulse as pulses
from holdfast.shapes.schedules.store import DUE_IN
from holdfast.store.statement import Statement
from holdfast.store.wake import Pulse, Question, Rounds, pulse
from holdfast.testing import Kit

# The pulse asks for the sweeper too; nothing is found by polling.
STILL = replace(QUICK, heartbeat=0.4, dead_after=1.6, lease=60.0, sweep=0.3, poll=600.0)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Every statement of the worker's sessions, by its name."""
    found: Counter[str] = Counter()
    run = Session._run

    async def counting(self: Session, what: Any) -> Any:
        found[what.name if isinstance(what, Statement) else self._name] += 1
        return await run(self, what)

    monkeypatch.setattr(Session, "_run", counting)
    return found


@pytest.fixture
async def still(app: Holdfast, holdfast_kit: Callable[..., Kit], notes: Notes) -> AsyncIterator[Kit]:
    """One worker that has slept for a while."""
    kit = holdfast_kit(app, STILL)
    async with working(kit):
        await until_asleep(kit)
        await asyncio.sleep(2 * STILL.heartbeat)
        yield kit
    await kit.database.aclose()


async def test_one_statement_per_heartbeat_is_all(still: Kit, counted: Counter[str]) -> None:
    await asyncio.sleep(10 * STILL.heartbeat)
    assert set(counted) == {"pulse"}
    assert 7 <= counted["pulse"] <= 11


@pytest.mark.parametrize("ring", [False, True])
async def test_at_default_settings_an_idle_worker_asks_at_most_every_second_second(
    app: Holdfast,
    holdfast_kit: Callable[..., Kit],
    notes: Notes,
    counted: Counter[str],
    monkeypatch: Any,
    ring: bool,
) -> None:
    """Also where it has a share of a ring, which it would have to ask for every second while it is awake."""
    monkeypatch.setattr("holdfast.runtime.sleep._LIGHT", 0.0)
    if ring:
        app.queue("orders", ordering="key")
    kit = holdfast_kit(app, Settings())
    async with working(kit, queues=["inbox", "orders"] if ring else []):
        await until_asleep(kit, 2 if ring else 1)
        await asyncio.sleep(4)
        counted.clear()
        await asyncio.sleep(12)
        assert 3 <= counted.total() <= 5, counted
    await kit.database.aclose()


async def test_it_is_not_fenced_while_it_sleeps(still: Kit) -> None:
    before = still.sql("SELECT id FROM holdfast.workers WHERE status = 'alive'")
    await asyncio.sleep(3 * STILL.dead_after)
    (worker,) = still.sql(
        "SELECT id, now() - last_seen_at AS silent FROM holdfast.workers WHERE status = 'alive'"
    )
    assert [{"id": worker["id"]}] == before
    assert worker["silent"] < timedelta(seconds=STILL.dead_after)


async def test_when_the_loop_hangs_the_renewing_thread_beats(still: Kit) -> None:
    before = still.sql("SELECT id FROM holdfast.workers WHERE status = 'alive'")
    time.sleep(2 * STILL.dead_after)  # the loop hangs
    (worker,) = still.sql(
        "SELECT id, now() - last_seen_at AS silent FROM holdfast.workers WHERE status = 'alive'"
    )
    assert [{"id": worker["id"]}] == before
    assert worker["silent"] < timedelta(seconds=STILL.dead_after)


async def test_what_a_dead_worker_left_is_taken_back(still: Kit, notes: Notes) -> None:
    still.sql(
        "INSERT INTO holdfast.workers VALUES ('dead', 'h', 1, 'alive', now(), now(), '{inbox}', '{}', 1, '-')"
    )
    still.sql(
        """WITH job AS (INSERT INTO holdfast.work (id, queue, task, payload, status, claim_token)
               VALUES (holdfast.uuid7(), 'inbox', 'note', '{"n": 3}', 'processing', gen_random_uuid()) RETURNING *)
           INSERT INTO holdfast.claims
           SELECT claim_token, queue, 'dead', now(), now() + interval '1 hour', NULL, NULL, ARRAY[id] FROM job"""
    )
    await notes.until(3)


async def test_a_sleeping_worker_learns_who_shares_its_ring(
    app: Holdfast, holdfast_kit: Callable[..., Kit], counted: Counter[str], events: list[telemetry.Event]
) -> None:
    """It asks for the seats when they changed, and not while they stay as they are."""

    def shares() -> list[int]:
        return [event.fields["workers"] for event in events if event.name == "ring.changed"]

    app.queue("orders", ordering="key")
    kit = holdfast_kit(app, STILL)
    async with working(kit, queues=["orders"]):
        await until_asleep(kit)
        await await_until(lambda: counted["pulse"] >= 2, "its pulse beats")
        assert shares() == [1]
        counted.clear()
        kit.sql(
            "INSERT INTO holdfast.workers"
            " VALUES ('new', 'h', 1, 'alive', now() + interval '1 h', now(), '{orders}', '{}', 1, '-')"
        )
        kit.sql("INSERT INTO holdfast.seats VALUES ('orders', 1, 'new')")
        await await_until(lambda: shares() == [1, 2], "it knows of the other one")

        def only_pulses() -> bool:
            if set(counted) != {"pulse"}:
                counted.clear()
            return counted["pulse"] >= 3

        await await_until(only_pulses, "it woke for that, and is asleep again")
        kit.sql("UPDATE holdfast.workers SET status = 'gone' WHERE id = 'new'")
        await await_until(lambda: shares() == [1, 2, 1], "it knows that the other one is gone")
    await kit.database.aclose()


async def test_a_claim_of_a_job_that_woke_it_does_not_stay(
    still: Kit, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulses, "_LATE", 2.0)  # it does not end by itself between two of these jobs
    await asyncio.sleep(2 * STILL.heartbeat)
    for n in range(3):
        await notes.task.aenqueue(n)
        await notes.until(*range(n + 1))
        await asyncio.sleep(1.0)  # asleep again, its pulse beats
    await await_until(lambda: not still.sql("SELECT 1 FROM holdfast.claims"), "the claims are gone")


async def test_a_schedule_that_somebody_adds_fires(
    app: Holdfast, holdfast_kit: Callable[..., Kit], notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.shapes.schedules.service._LONGEST", 0.2)
    monkeypatch.setattr(pulses, "_LATE", 60.0)  # nobody asks by himself any more
    kit = holdfast_kit(app, STILL)
    async with working(kit):
        await until_asleep(kit)
        await asyncio.sleep(4 * STILL.heartbeat)
        await app.schedules.aadd("often", timedelta(seconds=1), notes.task.job(1))
        await await_until(lambda: len(notes.ran) >= 2, "two slots have run")
    await kit.database.aclose()


async def test_it_tidies_up_less_often(still: Kit) -> None:
    last = still.sql("SELECT last_tidy_at FROM holdfast.engine")
    still.sql("UPDATE holdfast.engine SET last_tidy_at = now() - interval '5 minutes'")
    changed = still.sql("SELECT last_tidy_at FROM holdfast.engine")
    await asyncio.sleep(4 * STILL.heartbeat)
    assert still.sql("SELECT last_tidy_at FROM holdfast.engine") == changed != last
    still.sql("UPDATE holdfast.engine SET last_tidy_at = now() - interval '11 minutes'")
    await await_until(
        lambda: still.sql("SELECT 1 FROM holdfast.engine WHERE last_tidy_at > now() - interval '1 minute'"),
        "it has tidied up",
    )


# The statement ----------------------------------------------------------------------------------------------------------

ROUNDS = Rounds(sweep=2, gap=60, grace=5, dead_after=10, tidy=600, retry=60)


class Asleep:
    """A worker in the registry, and its pulse."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.questions: list[Question] = []
        self.kit.sql(
            "INSERT INTO holdfast.workers VALUES ('me', 'h', 1, 'alive', now() - interval '5 s', now(), '{}', '{}', 1, '-')"
        )

    def feel(self, *, turn: bool = True) -> Pulse:
        found = self.ask(turn=turn)
        assert found is not None
        return found

    def ask(self, *, turn: bool = True) -> Pulse | None:
        if turn:
            self.kit.sql(
                "UPDATE holdfast.engine SET last_sweep_at = now() - interval '3 s', last_tidy_at = now()"
            )
        return self.kit.database.run(
            lambda: pulse("me", ["inbox"], [("note", 1)], 3.0, ROUNDS, questions=self.questions)
        )


@pytest.fixture
def me(sleepy: Kit) -> Asleep:
    return Asleep(sleepy)


def test_it_is_a_heartbeat(sleepy: Kit, me: Asleep) -> None:
    assert me.feel() == (None, 0, False, False, [], [])
    assert sleepy.sql("SELECT last_seen_at > now() - interval '1 s' AS seen FROM holdfast.workers") == [
        {"seen": True}
    ]


@pytest.mark.parametrize("status", ["draining", "gone"])
def test_who_is_not_alive_has_none(sleepy: Kit, me: Asleep, status: str) -> None:
    sleepy.sql("UPDATE holdfast.workers SET status = %s", [status])
    assert me.ask() is None
    assert sleepy.sql("SELECT last_sweep_at < now() - interval '2 s' AS old FROM holdfast.engine") == [
        {"old": True}
    ]


@pytest.mark.parametrize(
    "there",
    [
        "INSERT INTO holdfast.workers VALUES ('x', 'h', 1, 'alive', now() - interval '11 s', now(), '{}', '{}', 1, '-')",
        "INSERT INTO holdfast.claims VALUES (gen_random_uuid(), 'inbox', 'me', now(), 'epoch', NULL, 0, '{}')",
        "INSERT INTO holdfast.claims VALUES (gen_random_uuid(), 'inbox', 'me', now(), 'infinity', now(), NULL, '{}')",
        (
            "WITH x AS (INSERT INTO holdfast.workers VALUES ('x', 'h', 1, 'gone', now(), now(), '{}', '{}', 1, '-'))"
            " INSERT INTO holdfast.claims VALUES (gen_random_uuid(), 'inbox', 'x', now(), 'infinity', NULL, 0, '{}')"
        ),
        "INSERT INTO holdfast.sleepers VALUES ('inbox', 'nobody', 1)",
        "INSERT INTO holdfast.paused_tasks VALUES ('note', now())",
        "INSERT INTO holdfast.breakers (task, put_back) VALUES ('note', true)",
    ],
    ids=["silent", "expired", "revoked", "of the gone", "sleeper", "paused", "breaker"],
)
def test_there_is_something_to_sweep(sleepy: Kit, me: Asleep, there: str) -> None:
    assert me.feel().sweep is False
    sleepy.sql(there)
    assert me.feel().sweep is True
    assert me.feel(turn=False).sweep is False  # one sweep per interval


def test_after_a_gap_the_living_get_time_to_renew(sleepy: Kit, me: Asleep) -> None:
    sleepy.sql("INSERT INTO holdfast.paused_tasks VALUES ('note', now())")
    sleepy.sql("UPDATE holdfast.engine SET last_sweep_at = now() - interval '2 minutes'")
    assert me.feel(turn=False).sweep is False
    assert me.feel().sweep is False
    sleepy.sql("UPDATE holdfast.engine SET grace_until = now()")
    assert me.feel().sweep is True


def test_a_stranger_holds_the_row(sleepy: Kit, me: Asleep) -> None:
    sleepy.sql("UPDATE holdfast.engine SET last_sweep_at = now() - interval '1 minute', last_tidy_at = now()")
    with sleepy.connect() as conn:
        conn.execute("SELECT FROM holdfast.engine FOR UPDATE")
        found = me.feel(turn=False)
    assert found == (None, 0, None, False, [], [])


def test_when_to_tidy(sleepy: Kit, me: Asleep) -> None:
    sleepy.sql("UPDATE holdfast.engine SET last_tidy_at = now() - interval '2 minutes'")
    assert not me.feel(turn=False).tidy
    sleepy.sql(
        "INSERT INTO holdfast.groups (id, wanted, total, open, created_at, fault) "
        "VALUES (gen_random_uuid(), 'completed', 1, 0, now(), 'no queue')"
    )
    assert me.feel(turn=False).tidy  # its callback is tried again every minute


def test_the_next_schedule(app: Holdfast, sleepy: Kit, notes: Notes, me: Asleep) -> None:
    for name, origin, ahead in (("by_hand", "operator", 60), ("mine", "code", 40), ("of_others", "code", 20)):
        app.schedules.add(name, timedelta(hours=1), notes.task.job(1))
        sleepy.sql(
            "UPDATE holdfast.schedules SET origin = %s, next_at = now() + make_interval(secs => %s) WHERE name = %s",
            [origin, ahead, name],
        )
    me.questions = [Question(DUE_IN, (["mine"],)), Question(DUE_IN, (["mine", "of_others"],))]
    mine, also_others = me.feel().answers
    assert 35 < mine <= 40
    assert 15 < also_others <= 20
    sleepy.sql("UPDATE holdfast.schedules SET kept_slot = now() WHERE name = 'by_hand'")
    assert me.feel().answers == [0, 0]
    sleepy.sql("UPDATE holdfast.schedules SET paused_at = now()")
    assert me.feel().answers == [None, None]


def test_a_sweep_that_is_wanted_more_often_is_left_to_the_sweeper() -> None:
    assert pulses.Pulse(Settings()).sweeps
    assert not pulses.Pulse(replace(Settings(), sweep=1.0)).sweeps
