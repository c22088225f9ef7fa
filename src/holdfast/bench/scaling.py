"""What more processes and cores would give: a model from what one process was seen to take.

A job takes time of a worker's processor and of the server's, and some WAL. Worker processes share nothing but
the server, and each claims and settles on separate connections, which are processes of the server too. So the first
ceiling of a few processes is their one thread of Python each, and that of many is the cores. On a large machine it is the
writer of the WAL: that is one stream, whatever the number of cores.

Checked where it was measured: with one process and with two on this machine. Beyond that it is arithmetic.
"""

from dataclasses import dataclass

from .report import Report

MACHINES = ((8, 4), (32, 16))  # cores, and processes: enough for the cores to be what is short
WAL_WRITER = 1000  # MB a second: a good local disk; network disks of a cloud write a quarter of it


@dataclass(frozen=True, slots=True)
class Cost:
    worker: float  # microseconds of a processor, for each job
    server: float
    wal: float | None  # bytes, to claim and settle; None: not measured


@dataclass(frozen=True, slots=True)
class Expected:
    cores: int
    processes: int
    rate: float  # jobs per second
    ceiling: str
    measured: float | None = None
    wal: float | None = None  # MB per second at that rate


def cost_of(report: Report) -> Cost | None:
    worker = report.median("drain", "async-1 worker CPU")
    server = report.median("drain", "async-1 server CPU")
    if worker is None or server is None:
        return None
    return Cost(worker, server, report.median("wal", "WAL: claim, settle and archive"))


def expect(cost: Cost, cores: int, processes: int, measured: float | None = None) -> Expected:
    ceilings = {
        "a thread of Python in each process": processes / cost.worker * 1e6,
        "cores": cores / (cost.worker + cost.server) * 1e6,
    }
    if cost.wal:
        ceilings[f"WAL, at {WAL_WRITER:,} MB/s"] = WAL_WRITER * 1e6 / cost.wal
    name = min(ceilings, key=lambda ceiling: ceilings[ceiling])
    rate = ceilings[name]
    return Expected(cores, processes, rate, name, measured, cost.wal and cost.wal * rate / 1e6)


def scaling(report: Report) -> list[Expected]:
    """Of this machine with one process and two, beside what was measured; then of larger ones."""
    cost, cores = cost_of(report), report.meta.get("machine", {}).get("cores")
    if cost is None or not cores:
        return []
    here = [
        expect(cost, cores, processes, report.median("drain", f"async-{processes}")) for processes in (1, 2)
    ]
    return here + [expect(cost, *machine) for machine in MACHINES]
