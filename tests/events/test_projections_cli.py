"""`holdfast projection`: what its commands print and do."""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.conftest import QUICK, wait_until, within
from tests.events.test_projections_calls import QUICKLY, run_until, standing
from tests.events.test_projections_rebuild import run_until_swapped
from tests.surface.running import Cli

from holdfast import Event, Holdfast, Transaction
from holdfast.operate.refusal import Refused
from holdfast.shapes.events.builds import cancel
from holdfast.shapes.events.cli_projections import bar
from holdfast.shapes.events.procedures import Subscriptions
from holdfast.shapes.events.store import Progress
from holdfast.testing import Kit

app = Holdfast("postgresql://unused.invalid/none")
bad: set[int] = set()


@app.projection("totals", on=["counted"], tables=["totals"], poison="skip", max_attempts=1, retry=QUICKLY)
def totals(tx: Transaction, event: Event[Any]) -> None:
    if event.data["n"] in bad:
        raise ValueError("not that")
    tx.execute("INSERT INTO totals VALUES (%s)", [event.data["n"]])


@pytest.fixture
def kit(holdfast_kit: Callable[..., Kit]) -> Kit:
    kit = holdfast_kit(app, QUICK)
    kit.sql("CREATE TABLE totals (n int)")
    bad.clear()
    return kit


@pytest.fixture
def cli(kit: Kit, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("HOLDFAST_APP", f"{__name__}:app")
    return Cli(dsn, monkeypatch)


def count(kit: Kit) -> int:
    return len(kit.sql("SELECT 1 FROM totals"))


def test_projections_are_listed_paused_and_begun_anew(kit: Kit, cli: Cli) -> None:
    assert "No projections." in cli("projection", "list").out
    bad.add(2)
    for n in (1, 2, 3):
        app.publish("counted", {"n": n})
    run_until(kit, 3)
    listed = cli("projection", "list")
    assert listed.code == 0
    assert listed.out.split("\n")[1].split() == ["totals", "totals", "1", "1", "3", "0", "active", "1"]
    (found,) = json.loads(cli("projection", "list", "--json").out)["projections"]
    assert (found["name"], found["position"], found["failures"]) == ("totals", 3, 1)
    assert "ValueError: not that" in cli("projection", "failures", "totals").out
    again = cli("projection", "retry", "totals")
    assert again.code != 0
    assert "the first that failed again: event 2: ValueError: not that" in again.err
    bad.clear()
    assert "Applied 1 event, 0 left." in cli("projection", "retry", "totals").out
    assert count(kit) == 3

    assert cli("projection", "pause", "totals").out == "totals is paused.\n"
    assert standing(kit)["status"] == "paused"
    assert cli("projection", "resume", "totals").out == "totals is resumed.\n"

    refused = cli("projection", "reset", "totals")
    assert "this would empty totals and apply every event again. Say so: --yes" in refused.err
    assert cli("projection", "reset", "totals", "--yes").out == "totals starts over.\n"
    assert (count(kit), standing(kit)["position"]) == (0, 0)
    run_until(kit, 3)
    assert count(kit) == 3


def test_a_rebuild_is_begun_watched_given_up_and_dropped(kit: Kit, cli: Cli) -> None:
    app.publish("counted", {"n": 1})
    run_until(kit, 1)
    assert "has no old tables" in cli("projection", "drop", "totals", "--yes").out
    begun = cli("projection", "rebuild", "totals", "--no-wait")
    assert begun.out == "totals@1 is built. To give it up: holdfast projection cancel totals\n"
    assert "totals@1 is built" in cli("projection", "list").out
    assert cli("projection", "cancel", "totals").out == "The rebuild of totals was given up.\n"
    assert cli("projection", "cancel", "totals").out == "totals is not being rebuilt.\n"
    cli("projection", "rebuild", "totals", "--no-wait")
    run_until_swapped(kit)
    assert cli("projection", "drop", "totals", "--yes").out == "Dropped: totals\n"
    assert count(kit) == 1
    assert cli("projection", "drop", "totals", "--forget", "--yes").out == "totals is forgotten.\n"
    assert kit.sql("SELECT 1 FROM holdfast.subscriptions") == []
    assert "there is no subscription 'totals'" in cli("projection", "rebuild", "totals").err
    assert "the app has no projection 'sums' (known: totals)" in cli("projection", "rebuild", "sums").err


def test_the_command_waits_until_the_tables_are_swapped(kit: Kit, cli: Cli) -> None:
    app.publish("counted", {"n": 1})
    run_until(kit, 1)

    async def main() -> Any:
        from tests.flow.test_run import working

        async with working(kit):
            ran = await asyncio.to_thread(cli, "projection", "rebuild", "totals")
        await kit.database.aclose()
        return ran

    ran = asyncio.run(main())
    assert ran.out.endswith("totals has new tables. The old ones are kept: holdfast projection drop totals\n")


def test_the_command_says_when_somebody_else_gave_the_rebuild_up(kit: Kit, cli: Cli) -> None:
    app.publish("counted", {"n": 1})
    run_until(kit, 1)
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(cli, "projection", "rebuild", "totals")
        wait_until(lambda: standing(kit, "totals@1")["position"] is not None, what="the rebuild")
        Subscriptions(kit.database, "somebody").run(cancel("totals"))
        ran = watching.result()
    assert ran.code != 0
    assert "has new tables" not in ran.out
    assert "the rebuild of totals was given up meanwhile. Its tables are as they were" in ran.err


def test_the_command_ends_when_the_log_has_left_the_rebuild_behind(kit: Kit, cli: Cli) -> None:
    app.publish("counted", {"n": 1})
    run_until(kit, 1)
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(cli, "projection", "rebuild", "totals")
        wait_until(lambda: standing(kit, "totals@1")["position"] is not None, what="the rebuild")
        kit.sql(
            "UPDATE holdfast.subscriptions SET status = 'expired', missed = 1, problem = '1 event was removed' "
            "WHERE name = 'totals@1'"
        )
        try:
            ran = watching.result(within(4))
        finally:
            Subscriptions(kit.database, "somebody").run(cancel("totals"))  # whoever watches still ends now
    assert ran.err == "holdfast: the rebuild of totals stopped: 1 event was removed\n"


def test_what_goes_on_is_not_said_to_be_paused(kit: Kit, cli: Cli) -> None:
    app.publish("counted", {"n": 1})
    run_until(kit, 1)

    def stand(status: str, by: str) -> None:
        kit.sql(
            "UPDATE holdfast.subscriptions SET status = %s, paused_by = %s, paused_at = now(), problem = 'why'",
            [status, by],
        )

    stand("paused", "poison")
    cli("projection", "reset", "totals", "--yes")
    assert "paused" not in cli("subscriptions", "list").out
    stand("paused", "poison")
    cli("projection", "rebuild", "totals", "--no-wait")
    run_until_swapped(kit)
    assert "paused" not in cli("subscriptions", "list").out
    stand("expired", "ann")
    cli("subscriptions", "reset", "totals", "--to", "end", "--yes")
    assert "paused" not in cli("subscriptions", "list").out
    stand("paused", "ann")
    for act in (
        ("subscriptions", "reset", "totals", "--to", "end", "--yes"),
        ("projection", "reset", "totals", "--yes"),
    ):
        assert cli(*act).code == 0
        assert "by ann" in cli("subscriptions", "list").out


def test_the_bar_shows_how_far_how_fast_and_how_long() -> None:
    at = Progress("totals@2", 2, 0, 2500, 10_000, "worker", "building", None)
    assert bar(at, 2000, 4.0) == "[#####               ] 25% of 10,000, 500 per second, 15 s left"
    assert bar(at, 0, 4.0) == "[#####               ] 25% of 10,000"
    waiting = Progress("totals@2", 2, 0, 0, 0, None, "building", None)
    assert bar(waiting, 0, 0.0) == "[####################] 100% of 0, no worker has taken it yet"


def test_a_projection_that_is_run_is_not_forgotten_and_nothing_is_dropped(kit: Kit, cli: Cli) -> None:
    app.publish("counted", {"n": 1})
    run_until(kit, 1)
    cli("projection", "rebuild", "totals", "--no-wait")
    run_until_swapped(kit)
    old = "SELECT n FROM holdfast_old_totals.totals"
    assert kit.sql(old) == [{"n": 1}]
    kit.sql(
        "UPDATE holdfast.subscriptions SET owner = 'w', token = gen_random_uuid(), "
        "lease_expires_at = holdfast.now() + interval '1 hour'"
    )
    refused = cli("projection", "drop", "totals", "--forget", "--yes")
    assert refused.code != 0
    assert "totals is run by worker w. Take it out of the code first, or pause it" in refused.err
    assert kit.sql(old) == [{"n": 1}], "nothing was dropped"
    assert len(kit.sql("SELECT 1 FROM holdfast.subscriptions")) == 1

    kit.sql("UPDATE holdfast.subscriptions SET owner = NULL, token = NULL, lease_expires_at = '-infinity'")
    kit.sql("CREATE VIEW hangs_on AS " + old)
    refused = cli("projection", "drop", "totals", "--forget", "--yes")
    assert refused.code != 0
    assert len(kit.sql("SELECT 1 FROM holdfast.subscriptions")) == 1, "a table that cannot go keeps it all"

    kit.sql("DROP VIEW hangs_on")
    assert cli("projection", "drop", "totals", "--forget", "--yes").out == (
        "Dropped: totals\ntotals is forgotten.\n"
    )
    assert kit.sql("SELECT 1 FROM holdfast.subscriptions") == []
    assert kit.sql("SELECT 1 FROM pg_namespace WHERE starts_with(nspname, 'holdfast_')") == []
    again = cli("projection", "drop", "totals", "--forget", "--yes")
    assert "there is no subscription 'totals'" in again.err


def test_a_rebuild_is_listed_and_cannot_be_moved(kit: Kit, cli: Cli) -> None:
    """Moved, it would take the place of the live tables with events left out, or counted twice."""
    for n in (1, 2, 3):
        app.publish("counted", {"n": n})
    run_until(kit, 3)
    cli("projection", "rebuild", "totals", "--no-wait")
    listed = cli("subscriptions", "list")
    assert listed.code == 0
    assert listed.out.rstrip().endswith("rebuild of totals")
    assert "is            rebuild of totals\n" in cli("subscriptions", "show", "totals@1").out
    way_out = ". Give it up: holdfast projection cancel totals\n"
    for place, sure in (("2", "--yes"), ("end", "--yes"), ("2", "--dry-run")):
        refused = cli("subscriptions", "reset", "totals@1", "--to", place, sure)
        assert (refused.code, refused.err) == (
            2,
            "holdfast: totals@1 is the rebuild of totals: its tables would lack events, or count them twice"
            + way_out,
        )
    with pytest.raises(Refused, match="would lack events"):
        Subscriptions(kit.database, "ann").reset("totals@1", 2)
    refused = cli("subscriptions", "replay", "totals@1", "--from", "0", "--yes")
    assert refused.err == "holdfast: totals@1 is the rebuild of totals, and reads all events" + way_out
    kit.sql("UPDATE holdfast.subscriptions SET status = 'expired', missed = 2 WHERE name = 'totals@1'")
    refused = cli("subscriptions", "resume", "totals@1")
    assert refused.err == "holdfast: totals@1 is expired: it missed 2 events" + way_out
    kit.sql("UPDATE holdfast.subscriptions SET status = 'building', missed = NULL WHERE name = 'totals@1'")
    run_until_swapped(kit)
    assert count(kit) == 3


def test_a_name_that_no_projection_has_is_refused(kit: Kit, cli: Cli) -> None:
    run_until(kit, 0)
    for verb, *more in (("cancel",), ("drop", "--yes"), ("pause",), ("resume",), ("failures",)):
        refused = cli("projection", verb, "totaIs", *more)
        assert refused.code == 2, verb
        assert "there is no subscription 'totaIs' (known: totals)" in refused.err
    assert cli("projection", "failures", "totals").out == "Nothing was skipped or parked.\n"


def test_a_rebuild_goes_with_the_projection_that_is_forgotten(kit: Kit, cli: Cli) -> None:
    app.publish("counted", {"n": 1})
    run_until(kit, 1)
    cli("projection", "rebuild", "totals", "--no-wait")
    assert cli("projection", "drop", "totals", "--forget", "--yes").out == "totals is forgotten.\n"
    assert kit.sql("SELECT 1 FROM holdfast.subscriptions") == []
    assert kit.sql("SELECT 1 FROM holdfast.projection_builds") == []
    assert kit.sql("SELECT 1 FROM pg_namespace WHERE starts_with(nspname, 'holdfast_')") == []
    actions = [row["action"] for row in kit.sql("SELECT action FROM holdfast.audit ORDER BY id")]
    assert actions[-2:] == ["remove_subscription", "projection cancel"]


def test_what_was_parked_is_given_up_from_the_command_line(kit: Kit, cli: Cli) -> None:
    bad.update({1, 2})
    for n, key in ((1, "a"), (2, "b"), (2, "b")):
        app.publish("counted", {"n": n}, key=key)
    run_until(kit, 3)
    forget = ("subscriptions", "forget-failures", "totals")
    assert cli(*forget, "--key", "b", "--dry-run").out == (
        "Dry run: 2 events of key b would be given up. Nothing was changed.\n"
    )
    assert "Say so: --yes" in cli(*forget).err
    assert len(totals.failures()) == 3
    assert cli(*forget, "--key", "b", "--yes").out == "2 events of key b given up.\n"
    assert cli(*forget, "--position", "2", "--yes").out == "0 events at position 2 given up.\n"
    assert json.loads(cli(*forget, "--yes", "--json").out) == {
        "subscription": "totals",
        "forgotten": 1,
        "dry_run": False,
    }
    assert totals.failures() == []
    assert "there is no subscription 'sums'" in cli("subscriptions", "forget-failures", "sums", "--yes").err
