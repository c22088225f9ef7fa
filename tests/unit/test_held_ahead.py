"""What a worker holds ahead of its slots: few jobs of keys that take turns, and a budget of bytes."""

import time
from typing import Any
from uuid import uuid4

import pytest

from holdfast.model.job import ClaimedJob
from holdfast.model.queue import QueueRules
from holdfast.runtime.claim.limits import Limiter
from holdfast.runtime.inflight import InFlight

NOBODY: Any = None  # the session, which is not asked here


@pytest.mark.parametrize(
    ("rules", "free", "asked"),
    [
        (QueueRules(fair=True), 3, 5),  # two more than there are slots
        (QueueRules(fair=True), -4, 2),
        (QueueRules(fair=True), None, 100),
        (QueueRules(fair=True, concurrency=50), 3, 3),
        (QueueRules(ordering="key"), 3, 100),
    ],
)
def test_of_keys_that_take_turns_little_is_held_ahead(
    rules: QueueRules, free: int | None, asked: int
) -> None:
    assert Limiter("q", NOBODY, InFlight(), NOBODY).wish(rules, 100, free, by_key=True) == asked


def claimed(payload: str) -> ClaimedJob:
    return ClaimedJob(
        str(uuid4()), 1, 1, "t", 1, payload, None, 0, 0, 5, 0.0, False, 1, None, "inbox", str(uuid4()), 0.0, 1, 1
    )  # fmt: skip


def test_payloads_that_wait_are_counted_once_they_are_many() -> None:
    inflight = InFlight()
    waits, runs = inflight.add([claimed("x" * 60), claimed("y" * 40)], time.monotonic())
    runs.started_at = time.monotonic()
    assert inflight.idle_bytes(101) == 0  # all together are fewer
    assert inflight.idle_bytes(100) == 60
    runs.settling = True
    assert inflight.idle_bytes(100) == 100
    inflight.remove([waits.claimed])
    assert inflight.idle_bytes(10) == 40
