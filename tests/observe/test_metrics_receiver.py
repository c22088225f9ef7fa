"""What Prometheus reads of received messages and of relays, from a real worker on a real database."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.conftest import wait_until
from tests.observe.support import Port, ready, with_port
from tests.receiver.support import SECRET, body_of, standard
from tests.receiver.test_consume import Listed
from tests.relays.support import Memory, n_of

from holdfast import Holdfast, InMessage, ReceivedMessage, StandardWebhooks
from holdfast.shapes.receiver import consume
from holdfast.testing import Kit
from holdfast.transport import Refused

MakeKit = Callable[..., Kit]


def _until(port: Port, number: float, name: str, **labels: str) -> None:
    wait_until(lambda: port.value(name, **labels) == number, f"{name} {labels} is {number}")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume, "NOTED_EACH", 0.05)
    monkeypatch.setattr(consume, "_ASKED_EACH", 0.0)


class Waiting(Listed):
    async def waiting(self) -> int:
        return 7


def test_messages_by_source_and_outcome_what_is_parked_and_what_waits(
    app: Holdfast, holdfast_kit: MakeKit
) -> None:
    listed = Waiting(
        InMessage("m1", b'{"n": 1}', 1), InMessage("m1", b'{"n": 1}', 2), InMessage("m2", b"junk", 3)
    )

    @app.consume("bus", listed, dict[str, Any])
    def consumed(message: ReceivedMessage[dict[str, Any]]) -> None: ...

    @app.receive("bank", dict[str, int], verify=StandardWebhooks(SECRET))
    def paid(message: ReceivedMessage[dict[str, int]]) -> None: ...

    kit = holdfast_kit(app, with_port(metrics_snapshot=0.05))
    with ready(kit) as port:
        for outcome in ("new", "repeat", "parked"):
            _until(port, 1, "received_messages_total", source="bus", outcome=outcome)
        body, other = body_of(n=1), body_of(n=2)
        assert paid.accept(standard(body), body).status == 202
        assert paid.accept(standard(body), body).status == 200
        assert paid.accept(standard(other), other).status == 200
        assert paid.accept(standard(body), other).status == 401
        for outcome in ("new", "repeat", "differs", "refused"):
            _until(port, 1, "received_messages_total", source="bank", outcome=outcome)
        _until(port, 1, "source_parked_messages", source="bus")
        _until(port, 0, "source_parked_messages", source="bank")
        _until(port, 7, "source_waiting_messages", source="bus")
        assert port.value("source_read_age_seconds", source="bus") is not None
        assert port.value("source_read_age_seconds", source="bank") is None


def test_lag_and_counts_of_relays(app: Holdfast, holdfast_kit: MakeKit) -> None:
    memory = Memory(lambda m: Refused("forbidden", "no") if n_of(m) == 2 else None)
    relay = app.relay("out", memory, on=["*"], route="x", start="start")
    kit = holdfast_kit(app, with_port(metrics_snapshot=0.05))
    with ready(kit) as port:
        app.publish_many([("counted", {"n": n}, f"k{n}") for n in range(4)])
        _until(port, 3, "relay_sent_total", subscription="out")
        _until(port, 1, "relay_refused_total", subscription="out")
        _until(port, 1, "subscription_failures", subscription="out", shard="0")
        _until(port, 0, "subscription_lag_events", subscription="out", shard="0")
        relay.pause()
        app.publish_many([("counted", {"n": n}, "k") for n in range(10, 13)])
        app.events.last_position()
        _until(port, 3, "subscription_lag_events", subscription="out", shard="0")
        events, seconds = relay.lag()
        assert (events, seconds >= 0) == (3, True)
        relay.resume()
        _until(port, 0, "subscription_lag_events", subscription="out", shard="0")
        wait_until(lambda: (port.value("relay_sent_total", subscription="out") or 0) >= 6, "all are sent")
