"""The peers of workflows: DBOS and Absurd, each in the better of the ways it offers at each number of runs in flight.

They are the versions, and the environments, of the table of job queues. `share` scales the number of runs.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .table import ABSURD, ADAPTERS, DBOS, OWN, Peer

IN_FLIGHT = (1, 50, 500)
STEPS = 5
SHARE = 0.15  # of the runs that ours gets


def _dbos(in_flight: int) -> Mapping[str, Any]:
    """Sync workflows in threads; with 500 threads the async ones are quicker."""
    many = in_flight > 50
    return {"pool": 20, "threads": 64 if many else in_flight, "async": many}


def _absurd(in_flight: int) -> Mapping[str, Any]:
    """A worker runs the tasks of its batch over one connection, so many workers: 20 connections in all."""
    workers, producers = (1, 1) if in_flight == 1 else (16, 4)
    at_once = max(1, -(-in_flight // workers))
    return {
        "workers": workers,
        "producers": producers,
        "concurrency": at_once,
        "batch_size": at_once,
        "poll_interval": 0.002,
    }


def own(in_flight: int) -> Peer:
    return _made(OWN, "workflow_holdfast.py", in_flight, 1.0, {"concurrency": max(10, in_flight)})


def others(in_flight: int) -> dict[str, Peer]:
    made = (
        _made(DBOS, "workflow_dbos.py", in_flight, SHARE, _dbos(in_flight)),
        _made(ABSURD, "workflow_absurd.py", in_flight, SHARE, _absurd(in_flight)),
    )
    return {peer.name: peer for peer in made}


def _made(peer: Peer, adapter: str, in_flight: int, share: float, settings: Mapping[str, Any]) -> Peer:
    return replace(
        peer, adapter=ADAPTERS / adapter, share=share, workflow={"in_flight": in_flight, **settings}
    )


def run_count(peer: Peer, in_flight: int, runs: int) -> int:
    """As many as there are in flight twice; alone, each waits for the disk eight times."""
    if in_flight == 1:
        return max(10, runs // 50)
    return max(2 * in_flight, round(runs * peer.share))
