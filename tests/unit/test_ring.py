"""The ring: every bucket has one owner, shares are equal, and who comes or goes moves one share."""

import hashlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.bucket import BUCKETS, bucket
from holdfast.model.ring import buckets_of, owners

SEATS = st.frozensets(st.integers(0, 70), min_size=1, max_size=50)


def moved(before: tuple[int, ...], after: tuple[int, ...]) -> int:
    return sum(a != b for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("workers", range(1, 51))
def test_a_join_moves_no_more_than_its_share(workers: int) -> None:
    before, after = owners(range(workers)), owners(range(workers + 1))
    assert 0 < moved(before, after) <= 1.3 * BUCKETS / (workers + 1)
    assert {new for old, new in zip(before, after, strict=True) if old != new} == {workers}


@pytest.mark.parametrize("workers", range(2, 51))
def test_whoever_leaves_moves_no_more_than_its_share(workers: int) -> None:
    before = owners(range(workers))
    for leaver in range(workers):
        after = owners(set(range(workers)) - {leaver})
        assert 0 < moved(before, after) <= 1.3 * BUCKETS / workers
        assert {old for old, new in zip(before, after, strict=True) if old != new} == {leaver}


@pytest.mark.parametrize("workers", range(1, 51))
def test_shares_are_equal(workers: int) -> None:
    counts = Counter(owners(range(workers))).values()
    assert len(counts) == workers
    assert max(counts) - min(counts) <= 1


def test_what_a_leaver_had_goes_to_all_the_others_and_comes_back_with_who_takes_its_seat() -> None:
    full = owners(range(10))
    without = owners(set(range(10)) - {4})
    heirs = Counter(new for old, new in zip(full, without, strict=True) if old == 4)
    assert set(heirs) == set(range(10)) - {4}
    assert buckets_of(4, range(10)) == [b for b in range(BUCKETS) if full[b] != without[b]]


@pytest.mark.parametrize("workers", range(2, 51))
def test_with_one_empty_seat_nobody_has_much_more_than_the_others(workers: int) -> None:
    for leaver in range(workers):
        counts = Counter(owners(set(range(workers)) - {leaver}))
        assert max(counts.values()) <= 1.3 * BUCKETS / (workers - 1)


@pytest.mark.parametrize("workers", [3, 4])
def test_what_a_leaver_had_is_shared_evenly(workers: int) -> None:
    full = owners(range(workers))
    for leaver in range(workers):
        without = owners(set(range(workers)) - {leaver})
        heirs = Counter(new for old, new in zip(full, without, strict=True) if old == leaver)
        assert max(heirs.values()) <= 1.3 * BUCKETS / workers / (workers - 1)


@given(SEATS)
def test_every_bucket_has_one_owner_who_is_there(seats: frozenset[int]) -> None:
    found = owners(seats)
    assert len(found) == BUCKETS
    assert set(found) <= seats
    assert sorted(b for seat in seats for b in buckets_of(seat, seats)) == list(range(BUCKETS))


@given(SEATS, st.data())
def test_with_empty_seats_too_only_the_buckets_of_who_comes_or_goes_move(
    seats: frozenset[int], data: st.DataObject
) -> None:
    """But for the last seat: with it the empty ones before it go as well."""
    seats |= {71}
    other = data.draw(st.integers(0, 70))
    before, after = owners(seats - {other}), owners(seats | {other})
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert {new for _, new in changed} <= {other}


def test_the_order_in_which_seats_are_named_does_not_matter() -> None:
    assert owners([2, 0, 1]) == owners((0, 1, 2)) == owners({1, 2, 0})


def test_more_workers_than_buckets_leave_some_without_and_none_unserved() -> None:
    found = owners(range(BUCKETS + 10))
    assert Counter(found) == Counter(range(BUCKETS))
    assert buckets_of(BUCKETS + 9, range(BUCKETS + 10)) == []


@pytest.mark.parametrize(
    ("seats", "digest"),
    [((0,), "d4a3d17bd0ea330a"), (range(7), "cb92e7cda6e08c69"), ((0, 2, 5), "a2583c7bbc3c1a68")],
    ids=["one", "seven", "with holes"],
)
def test_two_releases_agree(seats: tuple[int, ...], digest: str) -> None:
    """Workers of two releases in one fleet must not own the same keys: this never changes."""
    assert hashlib.sha256(repr(owners(seats)).encode()).hexdigest().startswith(digest)


def test_the_vectors_of_a_bucket() -> None:
    assert [bucket(key) for key in ("order:9182", "", "a\\b")] == [751, 944, 544]
