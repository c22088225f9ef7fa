"""What the command line does with relays."""

import asyncio
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from tests.conftest import await_until
from tests.flow.test_run import working
from tests.relays.support import STEADY, Memory, n_of, position
from tests.surface.running import Cli

from holdfast import Event, Holdfast, Transaction
from holdfast.testing import Kit
from holdfast.transport import Health, Refused


class Sick(Memory):
    async def check(self, destinations: object) -> Health:
        return Health(False, f"no stream for {list(destinations)}")  # type: ignore[call-overload]


@pytest.fixture
def memory(app: Holdfast, kit: Kit) -> Memory:
    kit.database.settings = STEADY
    made = Memory(lambda m: Refused("unroutable", "no stream") if n_of(m) == 1 else None)
    app.relay("out", made, on=["order.*"], route="shop.{key}", start="start")
    return made


@pytest.fixture
def cli(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(dsn, monkeypatch)


@pytest.fixture
def module(app: Holdfast, kit: Kit, monkeypatch: pytest.MonkeyPatch) -> str:
    """The app as the command line finds it."""
    made = ModuleType("relay_cli_app")
    made.app = app  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return f"{made.__name__}:app"


def publish(app: Holdfast, *numbers: int) -> None:
    app.publish_many([("order.paid", {"n": n}, "a") for n in numbers])


def test_a_relay_is_listed_paused_retried_and_given_up_on(
    app: Holdfast, kit: Kit, cli: Cli, memory: Memory
) -> None:
    kit.run_worker()
    publish(app, 1, 2, 3)
    kit.run_worker()
    assert "3 events not sent" in cli.text("subscriptions", "list")
    assert "not sent      3 events" in cli.text("subscriptions", "show", "out")
    found = cli.text("subscriptions", "failures", "out")
    assert "parked" in found
    assert "unroutable: no stream" in found
    assert cli.text("subscriptions", "retry", "out") == (
        "1 event of out will be sent, and those that wait behind them.\n"
    )
    publish(app, 4)
    run_until(
        kit,
        lambda: (
            position(kit) == 4
            and cli.json("subscriptions", "failures", "out")["failures"][0]["kind"] == "parked"
        ),
    )
    assert memory.of("a") == [], "refused again"
    assert cli.text("subscriptions", "forget-failures", "out", "--position", "1", "--yes") == (
        "1 event at position 1 given up.\n"
    )
    run_until(kit, lambda: memory.of("a") == [2, 3, 4])
    assert cli.refused("subscriptions", "replay", "out", "--from", "start", "--yes") == (
        "out is a relay: a replay beside it would send events of a key from two places. "
        "Put it back instead: holdfast subscriptions reset out --to POSITION"
    )
    assert cli.text("subscriptions", "pause", "out") == "Subscription out is paused.\n"
    assert cli.text("subscriptions", "resume", "out") == "Subscription out is resumed.\n"


def run_until(kit: Kit, condition: Callable[[], object]) -> None:
    async def main() -> None:
        try:
            async with working(kit):
                await await_until(condition, "the relay went on")
        finally:
            await kit.database.aclose()

    asyncio.run(main())


def test_a_projection_is_retried_by_its_own_command_and_a_consumer_by_this_one(
    app: Holdfast, kit: Kit, cli: Cli
) -> None:
    @app.on("order.*", name="send")
    def send(event: Event[Any]) -> None: ...

    @app.projection("totals", on=["order.*"])
    def totals(tx: Transaction, event: Event[Any]) -> None: ...

    kit.run_worker()
    assert cli.refused("subscriptions", "retry", "totals") == (
        "totals is no relay but of kind projection: what it skipped cannot be sent. "
        "Of a projection: holdfast projection retry totals"
    )
    publish(app, 2)
    for name in ("pause", "skip", "resume"):
        cli.text("subscriptions", name, "send")
    assert cli.text("subscriptions", "retry", "send") == (
        "1 event that send skipped will be read to it once more.\n"
    )


def test_destinations_are_asked_whether_they_are_well(
    app: Holdfast, kit: Kit, cli: Cli, memory: Memory, module: str
) -> None:
    publish(app, 1)
    found = cli.text("relays", "check", "--app", module)
    assert found.splitlines()[1].split() == ["out", "ok", "1", "-"]
    app.relay("sick", Sick(), on=["order.paid"], route="x.{type}")
    ran = cli("relays", "check", "--app", module)
    assert ran.code == 1
    assert "no stream for ['x.order.paid']" in ran.out
    assert cli.json("relays", "check", "out", "--app", module) == {
        "relays": [{"relay": "out", "ok": True, "destinations": ["shop.a"], "detail": ""}]
    }
    assert cli.refused("relays", "check", "nope", "--app", module) == (
        "the app has no relay 'nope' (known: out, sick)"
    )
