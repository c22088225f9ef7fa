"""The data of events is erased, for good, and the log goes on without it."""

import asyncio
from typing import Any

import pytest
from tests.surface.running import Cli

from holdfast import Event, EventsGone, Holdfast
from holdfast.shapes.events import erase
from holdfast.shapes.events.procedures import Subscriptions
from holdfast.testing import Kit


@pytest.fixture
def cli(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("HOLDFAST_ACTOR", "ann")
    monkeypatch.delenv("HOLDFAST_APP", raising=False)
    return Cli(dsn, monkeypatch)


def publish(app: Holdfast, *numbers: int) -> None:
    app.publish_many([("order.paid", {"n": n, "mail": "a@b.example"}, f"order:{n % 2}") for n in numbers])


def left(kit: Kit) -> list[int | None]:
    """What the data of each event says, in order."""
    found = Subscriptions(lambda: kit.app.database, "ann").read(0)
    return [None if event.data is None else event.data["n"] for event in found]


def acts(kit: Kit) -> list[tuple[str, str, dict[str, Any], int]]:
    rows = kit.sql("SELECT actor, action, selection, count FROM holdfast.audit ORDER BY id")
    return [(r["actor"], r["action"], r["selection"], r["count"]) for r in rows]


@pytest.mark.versions
def test_events_are_erased_by_position_and_by_id(app: Holdfast, kit: Kit, cli: Cli) -> None:
    publish(app, 1, 2, 3)
    events = Subscriptions(lambda: kit.app.database, "ann").read(0)
    last = str(events[2].id)
    assert "would be erased. Nothing was changed." in cli.text(
        "events", "erase", "1", last, "--whole", "--dry-run"
    )
    assert left(kit) == [1, 2, 3]
    assert cli.text("events", "erase", "1", last, "--whole", "--yes") == "The data of 2 events is erased.\n"
    assert left(kit) == [None, 2, None]
    assert kit.sql("SELECT count(*) AS n FROM holdfast.events WHERE data::text LIKE '%%b.example%%'") == [
        {"n": 1}
    ]
    assert "data      erased" in cli.text("events", "show", "1")
    ids = [str(events[0].id), last]
    assert acts(kit) == [("ann", "erase_events", {"ids": ids}, 2)]
    assert cli.text("events", "erase", "1", "--whole", "--yes") == "There is no data to erase.\n"


def test_all_events_of_a_key_are_erased_in_batches(
    app: Holdfast, kit: Kit, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erase, "AT_ONCE", 2)
    publish(app, 1, 2, 3, 4, 5)
    said = cli.text("events", "erase", "--key", "order:1", "--whole", "--dry-run")
    assert said == "Dry run: the data of 3 events of key order:1 would be erased. Nothing was changed.\n"
    assert left(kit) == [1, 2, 3, 4, 5]
    assert acts(kit) == []
    assert (
        cli.text("events", "erase", "--key", "order:1", "--whole", "--yes")
        == "The data of 3 events is erased.\n"
    )
    assert left(kit) == [None, 2, None, 4, None]
    assert {(who, action, which["key"]) for who, action, which, _ in acts(kit)} == {
        ("ann", "erase_events", "order:1")
    }
    assert sum(count for *_, count in acts(kit)) == 3


def test_subscribers_go_on_behind_an_event_that_was_erased(app: Holdfast, kit: Kit) -> None:
    got: list[int] = []

    @app.on("order.*", name="receipts", start="start")
    def receipts(event: Event[Any]) -> None:
        got.append(event.data["n"])

    publish(app, 1, 2, 3)
    verbs = Subscriptions(lambda: kit.app.database, "ann")
    assert asyncio.run(_erase(verbs, 2)) == 1
    kit.run_worker()
    assert sorted(got) == [1, 3]


async def _erase(verbs: Subscriptions, position: int) -> int:
    return await verbs.erase.arun([position])


def test_what_erase_refuses(app: Holdfast, kit: Kit, cli: Cli) -> None:
    publish(app, 1)
    for words in ([], ["1", "--key", "order:1"]):
        with pytest.raises(
            AssertionError, match="say which events: positions or ids, or --key, and not both"
        ):
            cli.text("events", "erase", *words)
    with pytest.raises(
        AssertionError, match="Pass --app or set HOLDFAST_APP, or erase all of the data with --whole"
    ):
        cli.text("events", "erase", "1", "--yes")
    with pytest.raises(EventsGone, match="the log has no event 7"):
        Subscriptions(lambda: kit.app.database, "ann").erase([1, 7])
    assert left(kit) == [1]
