"""`python -m bench SCENARIO...`: as `holdfast bench`, with the scenarios `peers`, `workflow-peers` and `pythons`.

--peer NAME measures only that one, and may be repeated.
"""

import argparse
import sys

from holdfast.bench import scenarios
from holdfast.bench.__main__ import main

from . import pythons, scenario, workflow_scenario


def run() -> int:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--peer", action="append", default=[])
    options.add_argument("--peer-latency", type=int)
    given, words = options.parse_known_args()
    scenario.chosen_names = tuple(given.peer)
    if given.peer_latency:
        scenario.latency_jobs = given.peer_latency
    text = "other job queues on the same server, each in an environment of its own (pip and npm); not in all"
    scenarios.add("peers", text, scenario.run)
    text = "workflows of DBOS and Absurd on the same server, in turns with ours; as peers, not in all"
    scenarios.add(workflow_scenario.NAME, text, workflow_scenario.run)
    text = (
        "drains by every CPython 3.11 to 3.13 on this machine, each in an environment of its own; not in all"
    )
    scenarios.add(pythons.NAME, text, pythons.run)
    return main(words, program="python -m bench")


if __name__ == "__main__":
    sys.exit(run())
