"""What `make test` and `make test-long` run on each version of PostgreSQL."""

from scripts.run_tests import DIFFERS, OTHERS, on_version, versioned
from tests.pg_versions import BETWEEN, NEWEST, OLDEST, VERSIONS


def test_every_version_is_run_and_only_one_between_the_ends_runs_a_part() -> None:
    assert sorted({*OTHERS, NEWEST}) == sorted(VERSIONS)
    assert set(VERSIONS) - BETWEEN == {OLDEST, NEWEST}


def test_the_part_is_made_of_files_that_depend_on_the_version() -> None:
    assert {f"tests/{name}" for name in DIFFERS} <= set(versioned())


def test_the_oldest_leaves_out_the_slow_ones_and_no_file() -> None:
    assert on_version(OLDEST, long=False)[1:] == ["versions and not slow and not long", *versioned()]
    assert on_version(OLDEST, long=True)[1:] == ["versions and (slow or long)", *versioned()]


def test_the_long_run_leaves_out_nothing_on_a_version_between() -> None:
    assert all(on_version(major, long=True)[1:] == ["versions", *versioned()] for major in BETWEEN)
