"""The scenarios by name. Each module has `run(bench)`, which measures one round."""

import importlib
from collections.abc import Callable

from ..context import Bench

SCENARIOS = {
    "limit": "the claim and settle statements with no Python per job: what the database can do",
    "drain": "no-op jobs by one process and by two: async, sync, transactions, ordered, limited",
    "enqueue": "one by one, with a business write, in bulk; against a bare INSERT and COPY",
    "events": "publish, publish_many, projections, consumers and readers; against the same SQL by hand",
    "boundaries": "relays, webhooks and the receiver; against the same clients with nothing around them",
    "workflow": "runs of five steps, 1, 50 and 500 in flight; against the same statements; signals to code",
    "web": "the dashboard: its pages beside 10 million finished jobs, an open overview, 100 streams, acts",
    "steady": "a producer and a worker at a given rate: waiting and settling times",
    "latency": "50 jobs/s against an idle worker",
    "idle": "statements per second and processor time of a worker with nothing to do",
    "backlog": "drain rate and claim times with many jobs waiting",
    "horizon": "a drain while another session holds an old snapshot",
    "history": "a drain with many finished jobs in the archive (10 million take 7 GB)",
    "wal": "WAL, commits, dead rows and heap-only updates per job",
    "memory": "the memory of a worker over many jobs",
}


_added: dict[str, Callable[[Bench], None]] = {}


def add(name: str, text: str, run: Callable[[Bench], None]) -> None:
    """One that is not in this package. It is no part of `all`."""
    SCENARIOS[name] = text
    _added[name] = run


def every() -> list[str]:
    """What `all` means."""
    return [name for name in SCENARIOS if name not in _added]


def find(name: str) -> Callable[[Bench], None]:
    """What measures one round of a scenario. Imported at need."""
    if name in _added:
        return _added[name]
    module = importlib.import_module(f".{name}", __name__)
    run: Callable[[Bench], None] = module.run
    return run
