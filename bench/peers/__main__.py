"""`python -m bench.peers --url URL [NAMES]`: the peers alone. One JSON line per figure."""

import argparse
import json
import os
import sys
from pathlib import Path

from . import PEERS, Mode, measure


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    options.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(PEERS)}; all when none is given"
    )
    options.add_argument(
        "--url", required=True, help="of a database whose server is measured; others are made beside it"
    )
    options.add_argument(
        "--jobs", type=int, default=200_000, help="for the fastest peer; the others get their share"
    )
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--only", choices=["drain", "latency"], action="append")
    default = os.environ.get("HOLDFAST_BENCH_DIR", ".bench")
    options.add_argument(
        "--folder", type=Path, default=Path(default) / "peers", help="where the peers are installed"
    )
    given = options.parse_args()
    failed = 0
    modes: list[Mode] = given.only or ["drain", "latency"]
    for result in measure(given.url, given.jobs, given.repeats, given.names, given.folder, modes=modes):
        print(json.dumps(result.as_dict()), flush=True)
        failed += result.error is not None
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
