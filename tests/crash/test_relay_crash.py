"""Relays whose process is killed, stopped or fenced: each key is a prefix-repeat, never a gap, and never two at a time."""

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import QUICK, wait_until
from tests.crash.process import Scene, lines
from tests.crash.relay_app import app

from holdfast.shapes.events.procedures import Subscriptions
from holdfast.testing import Kit

MODULE = "tests.crash.relay_app"
KEYS = 4


@pytest.fixture
def scene(holdfast_kit: Callable[..., Kit], tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(holdfast_kit(app, QUICK), tmp_path)
    yield scene
    scene.end()


def publish(first: int, count: int) -> None:
    app.publish_many([("counted", {"n": n}, f"k{n % KEYS}") for n in range(first, first + count)])


def sent(scene: Scene) -> list[dict[str, Any]]:
    return lines(scene.folder / "sent")


def check(scene: Scene, total: int) -> None:
    """Each key in order; after a crash it may go back, and never leaps ahead."""
    found = sent(scene)
    for k in range(KEYS):
        mine = [line["n"] for line in found if line["key"] == f"k{k}"]
        wanted = list(range(k, total, KEYS))
        assert list(dict.fromkeys(mine)) == wanted[: len(set(mine))]
        assert all(b <= a + KEYS for a, b in itertools.pairwise(mine)), mine
    ids = {(line["key"], line["n"]): line["id"] for line in found}
    assert all(ids[line["key"], line["n"]] == line["id"] for line in found), "the same id on every try"


def position(scene: Scene) -> int:
    rows = scene.kit.sql("SELECT position FROM holdfast.subscriptions WHERE name = 'out'")
    return int(rows[0]["position"]) if rows else 0


def test_kill_9_at_every_step_repeats_and_leaves_no_gap(scene: Scene) -> None:
    total = 0
    for point in ("relay.read", "relay.sent", "relay.confirmed", "relay.before_cursor", "relay.moved"):
        publish(total, 40)
        total += 40
        worker = scene.start(module=MODULE, failpoints=f"{point}=kill", ready=False)
        assert worker.wait(60) == -signal.SIGKILL
        check(scene, total)
        acked = position(scene)
        assert acked <= len({line["id"] for line in sent(scene)}), "the position is behind what was sent"
    scene.start(module=MODULE)
    wait_until(lambda: position(scene) == total, "all are sent", 60)
    check(scene, total)
    assert len({line["id"] for line in sent(scene)}) == total


def test_a_stopped_owner_sends_nothing_more_when_it_goes_on(scene: Scene) -> None:
    publish(0, 40)
    one = {"RELAY_WINDOW": "1"}  # so that the next thing it does is to send
    first = scene.start(module=MODULE, failpoints="relay.confirmed=stop", ready=False, env=one)
    wait_until(lambda: sent(scene), "it sent something", 60)
    wait_until(lambda: _is_stopped(first.pid), "it stopped after its first batch", 60)
    assert len(sent(scene)) < 40
    second = scene.start(module=MODULE)
    wait_until(lambda: position(scene) == 40, "the other took over", 60)
    publish(40, 40)
    first.kill(signal.SIGCONT)
    wait_until(lambda: position(scene) == 80, "all are sent", 60)
    owners = [line["pid"] for line in sent(scene)]
    took_over = owners.index(second.pid)
    assert first.pid not in owners[took_over:], "the stopped one sent after the other had begun"
    check(scene, 80)


def _is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


def test_a_fenced_relay_is_not_taken_up_before_it_has_stopped(scene: Scene) -> None:
    """An operator puts it back while its owner is stopped: nobody sends until the lease of the stopped one is over."""
    publish(0, 20)
    first = scene.start(module=MODULE, dead_after=3.0, lease=5.0)
    wait_until(lambda: position(scene) == 20, "all are sent", 60)
    os.kill(first.pid, signal.SIGSTOP)
    expires = scene.kit.sql("SELECT lease_expires_at AS at FROM holdfast.subscriptions")[0]["at"]
    Subscriptions(scene.kit.database, "test").reset("out", 0)
    (row,) = scene.kit.sql("SELECT lease_expires_at AS at, token, position FROM holdfast.subscriptions")
    assert row["token"] is None
    assert row["position"] == 0
    assert row["at"] >= expires, "the lease of its owner still counts"
    second = scene.start(module=MODULE, dead_after=3.0, lease=5.0)
    wait_until(lambda: position(scene) == 20, "it was sent again", 60)
    first.kill(signal.SIGCONT)
    publish(20, 20)
    wait_until(lambda: position(scene) == 40, "all are sent", 60)
    owners = [line["pid"] for line in sent(scene)]
    assert owners[:20] == [first.pid] * 20
    assert owners[20:40] == [second.pid] * 20
