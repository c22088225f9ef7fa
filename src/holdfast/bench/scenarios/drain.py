"""`drain`: how many jobs a second worker processes finish, and what one costs them.

The workers are started, in the registry and warm; the jobs are there, but not committed. The clock runs from the commit
until the last job has left the queue, seen from a connection of our own.
"""

import sys
from dataclasses import dataclass

from ..context import Bench
from ..crew import Drained, crew, drain, warm
from ..fill import Load
from .by_hand import transactions_by_hand


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    task: str
    queue: str = "inbox"
    processes: int = 1
    part: int = 1  # slower ones get the jobs divided by this
    each: int = 0  # jobs per key
    keys: int = 0  # or that many keys
    connections: bool = False  # one job at a time per connection
    argument: str = "n"
    of: str = ""  # its ratio to this variant is reported, if both are measured


VARIANTS = [
    Variant("async-1", "nothing"),
    Variant("dropped-1", "dropped", of="async-1"),
    Variant("async-2", "nothing", processes=2),
    Variant("sync-1", "nothing_sync", part=5),
    Variant("transaction-1", "order", part=10, connections=True),
    Variant("process-1", "nothing_apart", part=50, of="sync-1"),
    Variant("batch-1", "nothing_together", argument="item", of="async-1"),
    Variant("ordered-1", "keyed", "streams", each=10),
    Variant("ordered-2", "keyed", "streams", each=10, processes=2),
    Variant("affinity-1", "affine", "affine", each=10, of="async-1"),
    Variant("affinity-2", "affine", "affine", each=10, processes=2, of="async-2"),
    Variant("limited-1", "limited", "limited", of="async-1"),
    Variant("limited-keys-1", "limited_by_key", "limited_keys", keys=1000, of="async-1"),
    Variant("narrow-2", "narrow", "narrow", processes=2, of="async-2"),
]
SERVER_TOO = ("async-1", "async-2")  # what scaling.py reads


def run(bench: Bench) -> None:
    rates: dict[str, float] = {}
    for variant in VARIANTS:
        if bench.wants(variant.name):
            rates[variant.name] = keep(bench, "drain", variant.name, measure(bench, variant))
            if variant.of in rates:
                bench.say(f"  that is {rates[variant.name] / rates[variant.of]:.2f} of {variant.of}")
        if variant.name == "transaction-1" and bench.wants("transaction-by-hand"):
            by_hand(bench, bench.sizes.jobs // variant.part)


def by_hand(bench: Bench, jobs: int) -> None:
    with bench.database() as url:
        rate = transactions_by_hand(url, jobs, bench.sizes.connections)
    bench.add("drain", "transaction-by-hand", "jobs/s", rate)
    bench.say(f"drain transaction-by-hand: {rate:,.0f} jobs/s")


def keep(bench: Bench, scenario: str, name: str, done: Drained) -> float:
    """One round of a variant is added to the results; returns its rate."""
    cpu = done.cpu / done.jobs * 1e6
    bench.add(scenario, name, "jobs/s", done.rate)
    bench.add(scenario, f"{name} worker CPU", "us/job", cpu)
    if done.server is not None and name in SERVER_TOO:
        bench.add(scenario, f"{name} server CPU", "us/job", done.server / done.jobs * 1e6)
    bench.say(f"{scenario} {name}: {done.rate:,.0f} jobs/s, {cpu:.1f} us/job")
    return done.rate


def measure(bench: Bench, variant: Variant, python: str = sys.executable) -> Drained:
    """One round of a variant."""
    jobs = max(bench.sizes.jobs // variant.part, 100)
    keys = jobs // variant.each if variant.each else variant.keys
    load = Load(jobs, variant.task, variant.queue, keys=keys, argument=variant.argument)
    concurrency = bench.sizes.connections if variant.connections else bench.sizes.concurrency
    with (
        bench.database() as url,
        crew(
            url,
            queues=[variant.queue],
            processes=variant.processes,
            concurrency=concurrency,
            python=python,
        ) as workers,
    ):
        warm(workers, load)
        return drain(workers, load)
