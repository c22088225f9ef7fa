"""`pythons`: the same drain by workers of every CPython on this machine, in turns, on the same server.

How an interpreter was built shows in `loop`, a piece of plain Python that each of them runs: one that was built without its
own optimisations takes longer for it, whatever its version. One that cannot be installed into is told and left out.
"""

import statistics
import subprocess
from pathlib import Path

from scripts.interpreters import Interpreter, environment, every

from holdfast.bench.context import Bench
from holdfast.bench.machine import build
from holdfast.bench.scenarios.drain import VARIANTS, keep, measure
from holdfast.errors import ConfigurationError

from .scenario import told

NAME = "pythons"
KINDS = ("async-1", "dropped-1", "sync-1", "transaction-1")
LOOP = """
import time
def step(n, seen={}):
    seen[n & 255] = f"{n}:{n * 3}"
    return len(seen)
began = time.perf_counter()
for n in range(1_000_000):
    step(n)
print(time.perf_counter() - began)
"""


def run(bench: Bench) -> None:
    here = [one for one in every() if one.release not in told(bench, "left_out", NAME)]
    if not here:
        raise ConfigurationError(
            "there is no CPython of 3.11 to 3.13 on this machine that others can be put into"
        )
    for one in here:
        try:
            python = environment(one.release, one.program)
        except (OSError, subprocess.SubprocessError) as error:
            told(bench, "left_out", NAME)[one.release] = str(error)
            bench.say(f"pythons {one.release} is left out: {error}")
            continue
        measure_one(bench, one, python)


def measure_one(bench: Bench, one: Interpreter, python: Path) -> None:
    told(bench, "settings", NAME)[one.release] = build(one.arguments)
    took = statistics.median(
        float(subprocess.run([python, "-c", LOOP], capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    )
    bench.add(NAME, f"{one.release} loop", "ms", took * 1000)
    bench.say(
        f"pythons {one.release}: {build(one.arguments)}; a million steps of a loop {took * 1000:.0f} ms"
    )
    for variant in VARIANTS:
        if variant.name in KINDS and bench.wants(variant.name):
            keep(bench, NAME, f"{one.release} {variant.name}", measure(bench, variant, str(python)))
