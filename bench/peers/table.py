"""The peers: which version, and how each is set. Docs: docs/performance-peers.md.

The settings are the best of those tried for each, starting from what its documentation recommends for throughput
(`drain`) and for latency. `share` scales the number of jobs, so that every peer takes about as long.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from holdfast.distribution import VERSION

ADAPTERS = Path(__file__).parent / "adapters"
Mode = Literal["drain", "latency", "workflow"]

# What adapters use themselves, beside the peer.
PSYCOPG = "psycopg[binary,pool]==3.3.8"
UVLOOP = "uvloop==0.23.0"
NODE = ("pg@8.23.1", "node@24.21.0")  # Node itself from npm: these peers need 22, and it is faster than 20


@dataclass(frozen=True)
class Peer:
    name: str
    language: Literal["python", "node"]
    version: str
    packages: tuple[str, ...]  # for pip or npm, each pinned
    adapter: Path
    share: float = 1.0
    drain: Mapping[str, Any] = field(default_factory=dict)
    latency: Mapping[str, Any] = field(default_factory=dict)
    workflow: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, mode: Mode) -> Mapping[str, Any]:
        return {"drain": self.drain, "latency": self.latency, "workflow": self.workflow}[mode]


def _batching(size: int) -> dict[str, Any]:
    return {"localQueue": {"size": size}, "completeJobBatchDelay": 0, "failJobBatchDelay": 0}


OWN = Peer(
    "holdfast",
    "python",
    VERSION,
    (),  # this very environment
    ADAPTERS / "run_holdfast.py",
    drain={"concurrency": 10},
    latency={"concurrency": 10},
)
DROPPED = Peer(  # completed jobs leave no row, as with those peers that delete them
    "holdfast-dropped",
    "python",
    VERSION,
    (),
    ADAPTERS / "run_holdfast.py",
    drain={"concurrency": 10, "keep_completed": False},
    latency={"concurrency": 10, "keep_completed": False},
)
GRAPHILE = Peer(
    "graphile-worker",
    "node",
    "0.18.0",
    ("graphile-worker@0.18.0", *NODE),
    ADAPTERS / "graphile_worker.mjs",
    share=1.0,
    drain={"concurrentJobs": 24, "maxPoolSize": 25, **_batching(2000)},
    latency={"concurrentJobs": 24, "maxPoolSize": 25, **_batching(25)},
)
PG_BOSS = Peer(
    "pg-boss",
    "node",
    "12.35.0",
    ("pg-boss@12.35.0", *NODE),
    ADAPTERS / "pg_boss.mjs",
    share=0.5,
    drain={
        "max": 10,
        "notify": True,
        "work": {
            "batchSize": 5000,
            "localConcurrency": 2,
            "burstWhenBatchFull": True,
            "pollingIntervalSeconds": 0.5,
        },
    },
    latency={
        "max": 10,
        "notify": True,
        "work": {"batchSize": 100, "burstWhenBatchFull": True, "pollingIntervalSeconds": 0.5},
    },
)
PGQUEUER = Peer(
    "pgqueuer",
    "python",
    "1.6.0",
    ("pgqueuer[asyncpg]==1.6.0", "asyncpg==0.32.0", PSYCOPG, UVLOOP),
    ADAPTERS / "run_pgqueuer.py",
    share=0.3,
    drain={"managers": 2, "batch_size": 500},
    latency={"managers": 1, "batch_size": 10},
)
AWA = Peer(
    "awa-pg",
    "python",
    "0.6.9",
    ("awa-pg==0.6.9", PSYCOPG, UVLOOP),
    ADAPTERS / "run_awa.py",
    share=0.1,
    drain={
        "connections": 20,
        "poll_interval_ms": 50,
        "uvloop": True,
        "queue": {"max_workers": 1000, "claim_batch_size": 512},
    },
    latency={"connections": 10, "poll_interval_ms": 10, "uvloop": True, "queue": {"max_workers": 50}},
)
CHANCY = Peer(
    "chancy",
    "python",
    "0.26.0",
    ("chancy==0.26.0", PSYCOPG, UVLOOP),
    ADAPTERS / "run_chancy.py",
    share=0.05,
    drain={
        "concurrency": 5000,
        "polling_interval": 1,
        "eager_polling": True,
        "send_outgoing_interval": 0.1,
        "uvloop": True,
    },
    latency={
        "concurrency": 100,
        "polling_interval": 1,
        "eager_polling": False,
        "send_outgoing_interval": 0.1,
        "uvloop": True,
    },
)
ABSURD = Peer(
    "absurd",
    "python",
    "0.5.1",
    ("absurd-sdk==0.5.1", "absurdctl==0.5.1", PSYCOPG),
    ADAPTERS / "run_absurd.py",
    share=0.02,
    drain={"workers": 16, "concurrency": 1, "batch_size": 100, "poll_interval": 0.05},
    latency={"workers": 2, "concurrency": 1, "batch_size": 10, "poll_interval": 0.005},
)
DBOS = Peer(
    "dbos",
    "python",
    "3.3.0",
    ("dbos==3.3.0", PSYCOPG),
    ADAPTERS / "run_dbos.py",
    share=0.015,
    drain={"pool": 50, "threads": 50, "worker_concurrency": 500, "polling_interval_sec": 0.05},
    latency={
        "pool": 20,
        "threads": 20,
        "worker_concurrency": 100,
        "polling_interval_sec": 0.01,
        "async": True,
    },
)
PROCRASTINATE = Peer(
    "procrastinate",
    "python",
    "3.10.0",
    ("procrastinate==3.10.0", PSYCOPG, UVLOOP),
    ADAPTERS / "run_procrastinate.py",
    share=0.015,
    drain={"concurrency": 20, "pool": 25, "uvloop": True},
    latency={"concurrency": 20, "pool": 25, "uvloop": True},
)

PEERS: dict[str, Peer] = {
    peer.name: peer for peer in (GRAPHILE, PG_BOSS, PGQUEUER, AWA, CHANCY, ABSURD, DBOS, PROCRASTINATE)
}
