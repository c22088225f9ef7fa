"""What a worker holds ahead of its slots: few jobs of keys that take turns, and a budget of bytes."""

import time
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast.model.job import ClaimedJob
from holdfast.model.queue import QueueRules
from holdfast.runtime.claim.limits import Claims, Limiter
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


@pytest.mark.parametrize(
    ("rules", "free", "asked"),
    [
        (QueueRules(fair=True), 3, 13),  # and ten that find a slot within a moment
        (QueueRules(fair=True, key_concurrency=5), 3, 13),
        (QueueRules(fair=True, key_concurrency=5), -5, 5),  # half of them have started
        (QueueRules(fair=True, key_concurrency=5), -6, 0),  # few are not worth a claim
        (QueueRules(ordering="key", concurrency=50), 3, 3),
    ],
)
def test_of_keys_that_take_turns_what_starts_within_a_moment_is_held_ahead(
    rules: QueueRules, free: int, asked: int
) -> None:
    inflight, jobs = InFlight(), [claimed("x")]
    limiter = Limiter("q", NOBODY, inflight, NOBODY)
    inflight.add(jobs, time.monotonic())
    limiter.came(jobs)
    assert limiter.wish(rules, 100, free, 10, by_key=True) == asked
    inflight.remove(jobs)
    assert limiter.wish(rules, 100, free, 10, by_key=True) == max(2, asked), "what waits is of other queues"


def test_claims_are_trimmed_when_what_is_over_is_worth_a_statement() -> None:
    inflight = InFlight()
    claims, jobs = Claims(inflight), [[claimed("x") for _ in range(20)] for _ in range(3)]
    for some in jobs:
        inflight.add(some, time.monotonic())
        claims.add(some)
    inflight.remove(jobs[0])
    assert claims.over() == [], "20 are not worth it, beside 40 that run"
    inflight.remove(jobs[1][:15])
    tokens = [UUID(some[0].token_text) for some in jobs]
    assert claims.over() == tokens[:2], "35 are"
    assert claims.over() == [], "what was trimmed is not trimmed again"
    inflight.remove(jobs[1])
    inflight.remove(jobs[2])
    assert claims.over() == [], "25 are not"
    later = [claimed("x") for _ in range(20)]
    claims.add(later)  # one that is over by now
    assert claims.over() == [*tokens[1:], UUID(later[0].token_text)]


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


def test_two_generations_of_a_job_are_two() -> None:
    """A job that was lost and claimed again is here twice while its first handler goes on."""
    inflight, first = InFlight(), claimed("xx")
    second = first._replace(generation=first.generation + 1)
    one, two = inflight.add([first, second], time.monotonic())
    assert (inflight.get(first), inflight.get(second)) == (one, two)
    assert inflight.remove([first]) == [one]
    assert inflight.remove([first]) == [None]
    assert inflight.still([first, second]) == [second]
