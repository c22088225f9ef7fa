"""How much a claim asks for: less after one that did not arrive, and never more bytes than are free."""

from typing import Any

import pytest

from holdfast.db.faults import ConnectionLost, LockTimeout
from holdfast.runtime.claim.portions import Portions


class Paid:
    def __init__(self, length: int) -> None:
        self.payload = "x" * length


def jobs(count: int, length: int) -> Any:
    return [Paid(length)] * count


def fail(portions: Portions, want: int, kind: type[Exception] = ConnectionLost) -> int:
    with pytest.raises(kind), portions.of("q", want) as asked:
        raise kind("late")
    return asked


def ask(portions: Portions, want: int, waiting: int = 0) -> tuple[int, int]:
    with portions.of("q", want, waiting) as asked:
        return asked, portions.bytes


def test_half_after_a_failure_and_more_again_after_success() -> None:
    portions = Portions(1000)
    assert fail(portions, 8, LockTimeout) == 8  # a statement that took too long
    assert [fail(portions, 8) for _ in range(5)] == [4, 2, 1, 1, 1]
    assert ask(portions, 8) == (1, 15)
    with portions.of("other", 8) as asked:
        assert (asked, portions.bytes) == (8, 1000)
    sizes = []
    while ask(portions, 8) != (8, 1000):
        portions.came("q", jobs(1, 2))
        sizes.append(ask(portions, 8)[0])
    assert sizes == sorted(sizes)


def test_an_error_that_is_no_outage_changes_nothing() -> None:
    portions = Portions(1000)
    with pytest.raises(ValueError, match="bad"), portions.of("q", 8):
        raise ValueError("bad")
    assert ask(portions, 8) == (8, 1000)


def test_what_waits_here_counts() -> None:
    portions = Portions(1000)
    assert ask(portions, 8, waiting=900) == (8, 100)
    assert ask(portions, 8, waiting=5000) == (8, 1)  # one job always


def test_where_payloads_are_long_no_more_are_asked_for_than_fit_twice() -> None:
    portions = Portions(1000)
    assert portions.came("q", jobs(4, 100)) == 400
    assert ask(portions, 2000)[0] == 20
    for _ in range(30):
        portions.came("q", jobs(4, 1))
    assert ask(portions, 2000)[0] > 1500
    portions.came("q", jobs(1, 5000))
    assert ask(portions, 2000)[0] == 1
