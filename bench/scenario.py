"""`peers`: other job queues on the same server, in turns with ours, each through its public API (bench.peers).

Ours is measured by an adapter of its own, the way the others are: so it differs a little from `drain` and `latency`. A peer
that cannot be installed or run is told and left out.
"""

import os
from pathlib import Path

from holdfast.bench.context import Bench
from holdfast.errors import ConfigurationError

from .peers import DROPPED, OWN, PEERS, Peer, PeerFailed, job_count, once
from .peers.run import LATENCY_JOBS, describe

chosen_names: tuple[str, ...] = ()  # of those to measure; none: all
latency_jobs: int | None = None  # of each peer, at 50 a second
_FEW = 100  # with --quick


def run(bench: Bench) -> None:
    for peer in [OWN, DROPPED, *chosen(bench)]:
        if peer.name not in told(bench, "left_out"):
            one(bench, peer)


def chosen(bench: Bench) -> list[Peer]:
    if unknown := [name for name in chosen_names if name not in PEERS]:
        raise ConfigurationError(f"there is no peer {unknown[0]!r} (known: {', '.join(PEERS)})")
    return [peer for name, peer in PEERS.items() if not chosen_names or name in chosen_names]


def folder() -> Path:
    """Where the peers are installed."""
    return Path(os.environ.get("HOLDFAST_BENCH_DIR", ".bench")) / "peers"


def one(bench: Bench, peer: Peer) -> None:
    try:
        found = once(bench.server.admin, peer, "drain", job_count(peer, bench.sizes.jobs), folder())
        waits = once(
            bench.server.admin,
            peer,
            "latency",
            latency_jobs or (_FEW if bench.quick else LATENCY_JOBS),
            folder(),
        )
    except PeerFailed as failed:
        told(bench, "left_out")[peer.name] = str(failed)
        bench.say(f"peers {peer.name} is left out: {failed}")
        return
    told(bench, "settings")[peer.name] = (
        f"{peer.version}, {peer.language}: {describe(peer, 'drain', [found])}"
    )
    rate, cpu = found["jobs"] / found["seconds"], found["cpu"] / found["jobs"] * 1e6
    add(bench, peer.name, rate, cpu, waits["p50"], waits["p99"])


def told(bench: Bench, what: str, scenario: str = "peers") -> dict[str, str]:
    """What stands beside the results: how each peer was set, and why one was left out."""
    found: dict[str, str] = (
        bench.report.meta.setdefault("runs", {}).setdefault(scenario, {}).setdefault(what, {})
    )
    return found


def add(bench: Bench, name: str, rate: float, cpu: float, p50: float, p99: float) -> None:
    bench.add("peers", f"{name} drain", "jobs/s", rate)
    bench.add("peers", f"{name} worker CPU", "us/job", cpu)
    bench.add("peers", f"{name} latency p50", "ms", p50)
    bench.add("peers", f"{name} latency p99", "ms", p99)
    bench.say(f"peers {name}: {rate:,.0f} jobs/s, latency p50 {p50:.2f} ms, p99 {p99:.2f} ms")
