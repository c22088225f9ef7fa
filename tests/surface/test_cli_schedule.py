"""`holdfast schedule`, as a person and as a program use it, and `app.schedules` behind it."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from typer.testing import CliRunner, Result

from holdfast import ConfigurationError, Holdfast, JobHandle, UnknownQueue, UnknownSchedule
from holdfast.cli import app as cli
from holdfast.cli.refusals import words as words_of
from holdfast.errors import EnqueueError
from holdfast.shapes.schedules.declare import declared
from holdfast.shapes.schedules.service import Scheduler
from holdfast.shapes.schedules.timing import Timing
from holdfast.testing import Kit

Call = Callable[..., Result]
STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"


@pytest.fixture(autouse=True)
def _ann(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_ACTOR", "ann")
    monkeypatch.delenv("HOLDFAST_APP", raising=False)


@pytest.fixture
def call(dsn: str) -> Call:
    def run(*words: str) -> Result:
        result = CliRunner().invoke(cli, ["schedule", *words, "-d", dsn])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code == 0, result.output
        return result

    return run


@pytest.fixture
def refused(dsn: str) -> Callable[..., str]:
    """The message of the error that a command ends with."""

    def run(kind: type[Exception], *words: str) -> str:
        result = CliRunner().invoke(cli, ["schedule", *words, "-d", dsn])
        assert isinstance(result.exception, kind), result.output
        return words_of(result.exception)

    return run


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dsn: str) -> Iterator[str]:
    """A module with an app whose task takes a number."""
    name = f"shop_{uuid4().hex[:8]}"
    (tmp_path / f"{name}.py").write_text(
        f"from holdfast import Holdfast\n\napp = Holdfast({dsn!r})\n\n\n@app.task\ndef nightly(n: int = 1) -> None: ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield f"{name}:app"
    sys.modules.pop(name, None)


def acts(kit: Kit) -> list[tuple[str, str, str, int]]:
    rows = kit.sql("SELECT actor, action, selection->>'schedule' AS s, count FROM holdfast.audit ORDER BY id")
    return [(r["actor"], r["action"], r["s"], r["count"]) for r in rows]


def line(result: Result) -> str:
    return re.sub(STAMP, "TIME", result.stdout.strip())


def stored(kit: Kit, name: str) -> dict[str, Any]:
    (row,) = kit.sql("SELECT *, holdfast.now() AS now FROM holdfast.schedules WHERE name = %s", [name])
    return row


# A life -------------------------------------------------------------------------------------------------------------


def test_a_schedule_is_added_listed_paused_resumed_run_and_removed(kit: Kit, call: Call) -> None:
    add = (
        "add",
        "nightly",
        "--cron",
        "0 3 * * *",
        "--task",
        "shop.nightly",
        "--tz",
        "Europe/Berlin",
        "--payload",
    )
    more = (
        '{"n": 5}',
        "--missed",
        "run_once",
        "--overlap",
        "queue",
        "--priority",
        "7",
        "--tag",
        "x",
        "--key",
        "k",
    )
    result = call(*add, *more)
    assert line(result) == "Schedule nightly added. At 03:00 every day (Europe/Berlin); next: TIME"
    assert result.stderr == "note: the arguments were not checked: no app was named (--app MODULE:APP)\n"
    assert line(call(*add, *more)).startswith("Schedule nightly exists already.")
    row = stored(kit, "nightly")
    assert (row["payload"], row["missed"], row["overlap"], row["priority"]) == (
        {"n": 5},
        "run_once",
        "queue",
        7,
    )
    assert (row["tags"], row["partition_key"], row["origin"]) == (["x"], "k", "operator")
    assert row["next_at"] == Timing("0 3 * * *", tz="Europe/Berlin").after(row["now"])

    heads, fields = call("list").stdout.splitlines()
    assert re.split(r"  +", heads) == ["schedule", "when", "task", "next", "last", "state"]
    assert re.split(r"  +", re.sub(STAMP, "TIME", fields)) == [
        "nightly",
        "At 03:00 every day (Europe/Berlin)",
        "shop.nightly",
        "TIME",
        "-",
        "-",
    ]
    assert line(call("pause", "nightly")) == "Schedule nightly is paused."
    assert line(call("pause", "nightly")) == "Schedule nightly was paused already."
    assert re.search(r"-     -     paused \d+ s, by ann$", call("list").stdout.strip())
    assert line(call("resume", "nightly")) == "Schedule nightly is resumed. Next: TIME"
    assert line(call("resume", "nightly")) == "Schedule nightly was not paused. Next: TIME"

    job = UUID(call("run", "nightly").stdout.strip())
    ran = kit.job(job)
    assert (ran["task"], ran["payload"], ran["priority"]) == ("shop.nightly", {"n": 5}, 7)
    assert ran["metadata"]["schedule"] == "nightly"
    assert line(call("remove", "nightly")) == "Schedule nightly is removed."
    assert line(call("list")) == (
        "No schedules. Declare one: app.schedule(...), or add one: holdfast schedule add NAME"
    )
    assert kit.job(job)["status"] == "pending"
    verbs = ("add", "pause", "resume", "run", "remove")
    assert acts(kit) == [("ann", f"schedule {verb}", "nightly", 1) for verb in verbs]


def test_every_command_speaks_json(kit: Kit, call: Call) -> None:
    def read(*words: str) -> Any:
        return json.loads(call(*words, "--json").stdout)

    added = read("add", "tick", "--every", "90s", "--task", "shop.tick")
    assert (added["created"], added["schedule"]["every"], added["schedule"]["when"]) == (
        True,
        90,
        "Every 90 seconds",
    )
    (listed,) = read("list")["schedules"]
    assert (listed["name"], listed["origin"], listed["payload"], listed["problem"]) == (
        "tick",
        "operator",
        {},
        None,
    )
    assert read("pause", "tick") == {"schedule": "tick", "changed": True}
    resumed = read("resume", "tick")
    assert (resumed["changed"], resumed["next_at"]) == (
        True,
        stored(kit, "tick")["next_at"].astimezone().isoformat(),
    )
    slots = read("next", "tick", "-n", "2")["slots"]
    first, second = (datetime.fromisoformat(s["at"]) for s in slots)
    assert second - first == timedelta(seconds=90)
    assert kit.job(UUID(read("run", "tick")["id"]))["task"] == "shop.tick"
    since = (first - timedelta(seconds=900)).isoformat()
    dry = read("backfill", "tick", "--from", since, "--dry-run")
    assert (dry["dry_run"], dry["backfill"]["fired"], dry["backfill"]["jobs"]) == (True, 10, [])
    assert read("remove", "tick") == {"schedule": "tick", "removed": True}


def test_an_app_checks_the_arguments(kit: Kit, call: Call, refused: Callable[..., str], shop: str) -> None:
    add = ("add", "x", "--every", "1h", "--task", "nightly", "-a", shop, "--payload")
    assert refused(EnqueueError, *add, '{"m": 1}').startswith(
        "nightly: got an unexpected keyword argument 'm'"
    )
    assert call(*add, '{"n": 3}').stderr == ""
    assert stored(kit, "x")["payload"] == {"n": 3}
    wrong = ("add", "y", "--every", "1h", "--task", "nigtly", "-a", shop)
    assert refused(EnqueueError, *wrong) == (
        "the app has no task 'nigtly' (known: nightly). Did you mean 'nightly'?"
    )


# Looking ahead ------------------------------------------------------------------------------------------------------


def test_next_shows_both_times_and_what_daylight_saving_does(kit: Kit, call: Call) -> None:
    call("add", "n", "--cron", "30 2 * * *", "--task", "t", "--tz", "Europe/Berlin")
    lines = call("next", "n", "-n", "370").stdout.splitlines()
    assert re.split(r"  +", lines[0]) == ["Europe/Berlin", "UTC", "note"]
    assert len(lines) == 371
    notes = [re.split(r"  +", text) for text in lines if "day" in text]
    assert {n[2] for n in notes} == {
        "02:30 does not exist on this day: the clock is put forward",
        "02:30 comes twice on this day: this is the first time",
    }
    (spring,) = {n[0][-14:] for n in notes if "forward" in n[2]}
    assert spring == " 03:00:00 CEST"


def test_next_says_that_it_is_paused(kit: Kit, call: Call) -> None:
    call("add", "n", "--every", "1h", "--task", "t")
    call("pause", "n")
    assert call("next", "n").stderr == "note: it is paused, for 0 s, by ann\n"


def test_last_slots(kit: Kit, call: Call, refused: Callable[..., str]) -> None:
    call("add", "h", "--cron", "0 * * * *", "--task", "t")
    assert len(call("last", "h").stdout.splitlines()) == 1, "its heads"
    now = stored(kit, "h")["now"]
    hour = now.replace(minute=0, second=0, microsecond=0).astimezone(UTC)
    call(
        "backfill", "h", "--from", (hour - timedelta(hours=3)).isoformat(), "--to", hour.isoformat(), "--yes"
    )
    call("run", "h")
    found = json.loads(call("last", "h", "--json").stdout)["slots"]
    assert [one["kind"] for one in found] == ["run", "backfill", "backfill", "backfill"]
    assert {one["job"] for one in found} == {str(job["id"]) for job in kit.jobs("t")}
    lines = call("last", "h", "-n", "2").stdout.splitlines()
    assert (len(lines), lines[0].split()) == (3, ["slot", "what", "decided", "job"])
    assert "'nobody' does not exist" in refused(ConfigurationError, "last", "nobody")
    assert "must be from 1 to 1000" in refused(ConfigurationError, "last", "h", "-n", "0")


# Backfill -----------------------------------------------------------------------------------------------------------


def test_a_backfill_says_how_many_wants_a_yes_and_fires_no_slot_twice(
    kit: Kit, call: Call, refused: Callable[..., str]
) -> None:
    call("add", "h", "--cron", "0 * * * *", "--task", "t", "--payload", '{"a": 1}')
    now = stored(kit, "h")["now"]
    hour = now.replace(minute=0, second=0, microsecond=0).astimezone(UTC)
    words = ("backfill", "h", "--from", (hour - timedelta(hours=4)).isoformat(), "--to", hour.isoformat())
    assert line(call(*words, "--dry-run")) == "4 jobs would be enqueued, for slots from TIME to TIME."
    said = "this would enqueue 4 jobs of schedule h, one per slot. Say so: --yes (or look first: --dry-run)"
    assert refused(ConfigurationError, *words) == said
    assert kit.jobs() == []
    assert line(call(*words, "--yes")) == "4 jobs enqueued, for slots from TIME to TIME."
    slots = [j["metadata"]["slot"] for j in kit.jobs("t")]
    assert slots == [(hour - timedelta(hours=n)).isoformat() for n in (4, 3, 2, 1)]
    assert line(call(*words)) == "0 jobs enqueued.\nLeft alone, because fired or skipped before: 4 slots."
    longer = ("backfill", "h", "--from", (hour - timedelta(hours=5)).isoformat(), "--to", hour.isoformat())
    assert line(call(*longer, "--yes")) == (
        "1 job enqueued, for slots from TIME to TIME.\nLeft alone, because fired or skipped before: 4 slots."
    )
    assert len(kit.jobs("t")) == 5
    assert acts(kit)[1:] == [("ann", "schedule backfill", "h", 4), ("ann", "schedule backfill", "h", 1)]


def test_a_backfill_of_what_is_not_fired_yet_and_the_tick_fire_it_once(kit: Kit, call: Call) -> None:
    """The worker was away: the operator backfills, then the worker comes back with missed=run_all."""
    call("add", "h", "--every", "10m", "--task", "t", "--missed", "run_all")
    before = stored(kit, "h")["decided_to"]
    kit.clock.advance(3600)
    done = kit.app.schedules.backfill("h", before)
    assert done.fired == len(list(Timing(every=600).between(before, stored(kit, "h")["now"])))
    kit.run_worker()
    assert len(kit.sql("SELECT slot FROM holdfast.firings")) == len(kit.jobs("t")) == done.fired


# Mistakes -----------------------------------------------------------------------------------------------------------

HOW = """Write it like '{"order_id": 17}'"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--cron", "0 25 * * *"),
            (
                "schedule 'n': cron '0 25 * * *' cannot be read: Bad hour. Write minute, hour, day of month, month and day "
                'of week, such as "0 3 * * *"; or @hourly, @daily, @weekly, @monthly, @yearly'
            ),
        ),
        (
            ("--cron", "0 3 * * *", "--tz", "Europe/Berln"),
            (
                "schedule 'n': there is no time zone 'Europe/Berln'. Did you mean 'Europe/Berlin'? "
                "Write it like Europe/Berlin, or UTC"
            ),
        ),
        (("--every", "soon"), "--every 'soon' is no span of time. Write 90s, 15m, 2h, 3d or plain seconds"),
        (
            ("--every", "1s", "--cron", "@daily"),
            'say when: --cron "0 3 * * *", or --every 90s (one of the two)',
        ),
        ((), 'say when: --cron "0 3 * * *", or --every 90s (one of the two)'),
        (
            ("--every", "1h", "--payload", "{"),
            (
                "--payload is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1). "
                f"{HOW}"
            ),
        ),
        (("--every", "1h", "--payload", "[1]"), f"--payload must be a JSON object, not [1]. {HOW}"),
        (
            ("--every", "1ms"),
            (
                "schedule 'n': an interval must be whole seconds, from 1 second to 366 days, not 0.001. "
                "For what happens at a time of day, write a cron expression"
            ),
        ),
    ],
    ids=range(8),
)
def test_bad_schedules_are_refused(
    kit: Kit, refused: Callable[..., str], words: tuple[str, ...], message: str
) -> None:
    assert refused(ConfigurationError, "add", "n", "--task", "t", *words) == message
    assert kit.sql("SELECT name FROM holdfast.schedules") == []
    assert acts(kit) == []


def test_an_unknown_queue_or_schedule_is_named(kit: Kit, call: Call, refused: Callable[..., str]) -> None:
    said = refused(UnknownQueue, "add", "n", "--task", "t", "--every", "1h", "-q", "inbx")
    assert (
        said
        == "queue 'inbx' does not exist (known: inbox). Did you mean 'inbox'? Create it: holdfast queue create inbx"
    )
    call("add", "nightly", "--task", "t", "--every", "1h")
    said = "schedule 'nigtly' does not exist (known: nightly). Did you mean 'nightly'?"
    for verb in ("remove", "pause", "resume", "run", "next"):
        assert refused(UnknownSchedule, verb, "nigtly") == said
    assert refused(UnknownSchedule, "backfill", "nigtly", "--from", "2020-01-01T00:00Z") == said
    assert refused(ConfigurationError, "add", "nightly", "--task", "other", "--every", "1h") == (
        "schedule 'nightly' exists already: Every hour, t, from operator. Choose another name, or first remove it: "
        "holdfast schedule remove nightly"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--from", "7d"), "--from '7d' is no moment. Write it like 2026-05-01T00:00+02:00"),
        (
            ("--from", "2020-01-01T00:00"),
            "--from '2020-01-01T00:00' has no time zone. Write 2020-01-01T00:00Z for UTC, or 2020-01-01T00:00+02:00",
        ),
        (
            ("--from", "2020-01-02T00:00Z", "--to", "2020-01-01T00:00Z"),
            "the backfill's start (2020-01-02 00:00:00 UTC) must be before its end (2020-01-01 00:00:00 UTC)",
        ),
        (
            ("--from", "2000-01-01T00:00Z", "--to", "2020-01-01T00:00Z"),
            (
                "there are more than 10,000 slots from 2000-01-01 00:00:00 UTC to 2020-01-01 00:00:00 UTC. "
                "Backfill a shorter time at once"
            ),
        ),
    ],
    ids=range(4),
)
def test_bad_backfills_are_refused(
    kit: Kit, call: Call, refused: Callable[..., str], words: tuple[str, ...], message: str
) -> None:
    call("add", "h", "--every", "1h", "--task", "t")
    assert refused(ConfigurationError, "backfill", "h", *words) == message
    future = refused(
        ConfigurationError, "backfill", "h", "--from", "2020-01-01T00:00Z", "--to", "2999-01-01T00:00Z"
    )
    assert future.startswith(
        "the backfill's end (2999-01-01 00:00:00 UTC) is still to come: such slots fire by themselves."
    )


# Of code ------------------------------------------------------------------------------------------------------------


async def test_what_a_living_workers_code_has_is_not_removed_and_what_none_has_is_told(
    app: Holdfast, akit: Kit, call: Call, refused: Callable[..., str]
) -> None:
    @app.task
    async def nightly() -> None: ...

    app.schedule("0 3 * * *", nightly.job())
    scheduler = Scheduler(akit.database, declared(app.tasks))
    await scheduler.tick()
    await scheduler.stop()
    assert re.fullmatch(
        r"schedule 'nightly' is in the code of a live worker \(last heard of [\d.]+ s ago\), which would bring it back. "
        r"Take it out of the code, or pause it: holdfast schedule pause nightly",
        refused(ConfigurationError, "remove", "nightly"),
    )
    akit.sql("UPDATE holdfast.schedules SET declared_at = declared_at - interval '3 hours'")
    assert call("list").stdout.strip().endswith("in no live worker's code for 3 h")
    call("remove", "nightly")


def test_the_list_tells_of_a_problem(kit: Kit, call: Call) -> None:
    call("add", "n", "--every", "1h", "--task", "t")
    kit.sql("UPDATE holdfast.schedules SET problem = 'the queue is gone'")
    assert call("list").stdout.strip().endswith("fails: the queue is gone")
    kit.sql(
        "UPDATE holdfast.schedules SET problem = NULL, tz = 'Mars/Base', every = NULL, cron = '0 3 * * *'"
    )
    assert "schedule 'n' cannot be used here: there is no time zone" in call("list").stdout


# In Python ----------------------------------------------------------------------------------------------------------


async def test_the_async_twins_do_the_same(app: Holdfast, akit: Kit) -> None:
    @app.task
    async def nightly(n: int) -> int:
        return n

    schedules = app.schedules
    assert await schedules.aadd("x", timedelta(hours=1), nightly.job(n=4), overlap="skip")
    assert not await schedules.aadd("x", timedelta(hours=1), nightly.job(n=4), overlap="skip")
    assert [s.name for s in await schedules.alist()] == ["x"]
    assert await schedules.apause("x")
    assert (await schedules.aget("x")).paused_by == "ann"
    assert await schedules.aresume("x")
    handle = await schedules.arun("x")
    await akit.arun_worker()
    assert await handle.aresult(10) == 4
    assert len(await schedules.anext("x", 3)) == 3
    start = stored(akit, "x")["now"] - timedelta(hours=3)
    assert (await schedules.abackfill("x", start, dry_run=True)).fired == 3
    done = await schedules.abackfill("x", start)
    assert (done.fired, len(done.jobs)) == (3, 3)
    await schedules.aremove("x")
    with pytest.raises(UnknownSchedule):
        await schedules.aget("x")


def test_the_sync_ones_too(app: Holdfast, kit: Kit) -> None:
    @app.task
    async def nightly(n: int) -> int:
        return n

    schedules = app.schedules
    assert schedules.add("x", "0 3 * * *", nightly.job(n=4), tz="Europe/Berlin", missed="run_all")
    assert schedules.get("x").when == "At 03:00 every day (Europe/Berlin)"
    handle: JobHandle[Any] = schedules.run("x")
    kit.run_worker()
    assert handle.result(50) == 4
    assert [s.local.hour for s in schedules.next("x")] == [3] * 5
    with pytest.raises(ConfigurationError) as caught:
        schedules.next("x", 0)
    assert str(caught.value) == "the number of slots must be from 1 to 1000, not 0"
    with pytest.raises(ConfigurationError) as caught:
        schedules.backfill("x", datetime(2020, 1, 1))  # noqa: DTZ001
    assert str(caught.value) == (
        "the start of a backfill must be a time with a zone, not datetime.datetime(2020, 1, 1, 0, 0)"
    )


def test_a_pause_holds_and_what_passed_in_it_is_not_made_up_for(app: Holdfast, kit: Kit) -> None:
    @app.task
    async def nightly() -> None: ...

    app.schedules.add("x", timedelta(minutes=10), nightly.job(), missed="run_all")
    app.schedules.pause("x")
    kit.clock.advance(3600)
    kit.run_worker()
    assert kit.jobs() == []
    app.schedules.resume("x")
    kit.run_worker()
    assert kit.jobs() == []
    ahead = app.schedules.get("x").next_at
    assert ahead is not None
    kit.clock.advance((ahead - stored(kit, "x")["now"]).total_seconds() + 1)
    kit.run_worker()
    assert [j["metadata"]["slot"] for j in kit.jobs()] == [ahead.astimezone(UTC).isoformat()]
