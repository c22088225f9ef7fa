"""The random run of the log: in small on every version, with a million events in `make test-long`."""

import os
from pathlib import Path

import pytest
from tests.events.log_harness import Size, random_run
from tests.events.log_support import own_server

BINARIES = Path(os.environ["HOLDFAST_TEST_PG_BIN"]) if os.environ.get("HOLDFAST_TEST_PG_BIN") else None


HAPPENED = {
    "server stopped",
    "fenced",
    "past the lease",
    "crash before commit",
    "crash after commit",
    "prepared",
}


def check(size: Size, seed: int) -> None:
    with own_server(BINARIES, max_prepared_transactions="50", max_connections="100") as server:
        run = random_run(server, size, seed)
    counted = dict(sorted(run.seen.items()))
    print(counted)
    assert counted.keys() >= HAPPENED | {"failed: AdminShutdown"}, counted  # the killed ones


@pytest.mark.versions
@pytest.mark.slow
def test_every_committed_event_is_taken_once_in_order_at_the_same_position() -> None:
    check(Size(events=20_000, bulk=400), seed=12)


@pytest.mark.versions
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_million_events_over_all_versions() -> None:
    """A third of them on each of three versions."""
    check(Size(events=340_000, bulk=5000, keys=400, seconds=600.0), seed=34)
