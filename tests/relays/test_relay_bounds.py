"""What a relay keeps: nothing that it does not hold the log for, and no more memory however much waits."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import await_until
from tests.flow.test_run import working
from tests.relays.support import STEADY, Memory, position, reaches

from holdfast import Holdfast
from holdfast.shapes.relays.relay import BYTES_AHEAD, Relay
from holdfast.testing import Kit
from holdfast.transport import RetryLater


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def relays(akit: Kit, monkeypatch: pytest.MonkeyPatch) -> list[Relay]:
    akit.database.settings = STEADY
    made: list[Relay] = []
    begin = Relay.__init__

    def noted(self: Any, spec: Any, cursor: Any) -> None:
        begin(self, spec, cursor)
        made.append(self)

    monkeypatch.setattr(Relay, "__init__", noted)
    return made


async def test_the_log_is_kept_for_a_relay_unless_it_says_otherwise(app: Holdfast, akit: Kit) -> None:
    for name, hold in (("kept", True), ("loose", False)):
        app.relay(name, Memory(), on=["*"], route="x", start="start", hold=hold)
    app.publish("counted", {"n": 1})
    async with working(akit):
        await reaches(akit, 1, "kept")
        await reaches(akit, 1, "loose")
    found = {row["name"]: row["hold"] for row in akit.sql("SELECT name, hold FROM holdfast.subscriptions")}
    assert found == {"kept": True, "loose": False}


async def test_a_relay_that_may_not_hold_the_log_expires_with_the_number_it_missed(
    app: Holdfast, akit: Kit
) -> None:
    made = {
        name: app.relay(name, Memory(), on=["*"], route="x", start="start", hold=hold)
        for name, hold in (("kept", True), ("loose", False))
    }
    app.publish("counted", {"n": 1})
    async with working(akit):
        for name in made:
            await reaches(akit, 1, name)
    for relay in made.values():
        relay.pause()
    app.publish_many([("counted", {"n": n}, None) for n in range(2, 5)])
    assert app.events.last_position() == 4
    akit.clock.advance("10d")  # three days longer than the log is kept
    akit.sql("SELECT holdfast.empty_event_slots()")
    assert position(akit, "loose") == 1, "nothing is passed over in silence"
    kept = "SELECT name, status, missed FROM holdfast.subscriptions ORDER BY name"
    assert [tuple(row.values()) for row in akit.sql(kept)] == [
        ("kept", "paused", None),
        ("loose", "paused", None),
    ]
    made["kept"].resume()
    async with working(akit):
        await reaches(akit, 4, "kept")
    akit.sql("SELECT holdfast.empty_event_slots()")
    assert [tuple(row.values()) for row in akit.sql(kept)] == [
        ("kept", "active", None),
        ("loose", "expired", 3),
    ]


async def away_with(app: Holdfast, kit: Kit, relays: list[Relay], events: int) -> None:
    """A destination that is away while events are published: what is held, and what the process takes."""
    memory = Memory(lambda _: RetryLater("away"))
    app.relay("out", memory, on=["*"], route="x", start="start", window=100)
    app.publish_many([("counted", {"n": n}, f"k{n}") for n in range(1000)])
    async with working(kit):
        await await_until(lambda: bool(memory.tried), "it was tried")
        await await_until(lambda: relays[-1]._lanes.unsent >= 200, "it has read ahead")
        before = resident()
        for first in range(1000, events, 5000):
            await app.apublish_many(
                [("counted", {"n": n}, f"k{n}") for n in range(first, min(first + 5000, events))]
            )
            lanes = relays[-1]._lanes
            assert len(lanes) <= 1300
            assert lanes.unsent <= 1300
            assert lanes.bytes <= BYTES_AHEAD
        assert await app.events.alast_position() == events
        grown = resident() - before
    assert not memory.stored
    assert grown < 64 * 2**20, f"{grown / 2**20:.0f} MiB more"


async def test_memory_is_flat_with_a_destination_down(app: Holdfast, akit: Kit, relays: list[Relay]) -> None:
    await away_with(app, akit, relays, 11_000)


@pytest.mark.long
async def test_memory_is_flat_with_a_destination_down_for_a_million_events(
    app: Holdfast, akit: Kit, relays: list[Relay]
) -> None:
    await away_with(app, akit, relays, 1_000_000)
