"""`latency`: 50 jobs a second against a worker with nothing else to do."""

from ..context import Bench
from .steady import percentile, times

RATE = 50.0
KEPT = 500  # values of a round that stay in the results, evenly over the distribution


def run(bench: Bench) -> None:
    waits, settled, _ = times(bench, RATE, bench.sizes.seconds, idle=2.0)
    for share in (50, 95, 99):
        bench.add("latency", f"start p{share}", "ms", percentile(waits, share))
        bench.add("latency", f"settled p{share}", "ms", percentile(settled, share))
    bench.add("latency", "start distribution", "ms", *waits[:: max(1, len(waits) // KEPT)])
    bench.say(f"latency: start p50 {percentile(waits, 50):.2f} ms, p99 {percentile(waits, 99):.2f} ms")
