"""Remove each guard in turn and see its test fail: tests/mutants.toml.

`python scripts/mutants.py --only settle` runs those whose file, text or reason contains the word. Verdicts are kept in
.mutants: a run that was interrupted continues where it stopped, as long as no file has changed.
"""

import argparse
import json
import os
import queue
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from scripts.memory import quick_folder  # noqa: E402
from scripts.mutation import entries  # noqa: E402
from scripts.mutation.entries import Mutant  # noqa: E402
from scripts.mutation.judge import Bench, Unchanged, Verdict  # noqa: E402
from scripts.mutation.servers import Seed  # noqa: E402
from scripts.mutation.trees import copy, first_changed  # noqa: E402

KEPT = ROOT / ".mutants" / "verdicts.jsonl"
TOGETHER = (os.cpu_count() or 2) + 2  # most tests wait for something
GROUP = 12  # mutants whose tests are tried unchanged in one go


@dataclass(frozen=True)
class Prints:
    """What a kept verdict is good for."""

    tree: str
    own: dict[Mutant, str]


class Kept:
    """Verdicts of earlier runs, one JSON object per line; the last one about a mutant counts."""

    def __init__(self, prints: Prints) -> None:
        self._prints = prints
        self._lock = threading.Lock()
        self._rows: dict[str, dict[str, str]] = {}
        if KEPT.exists():
            for line in KEPT.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                self._rows[row["own"]] = row

    def caught(self, mutant: Mutant, *, whole: bool) -> bool:
        """Whether it was caught before. `whole`: and not one file of the tree has changed since."""
        row = self._rows.get(self._prints.own[mutant], {})
        return row.get("word") == "caught" and (not whole or row["tree"] == self._prints.tree)

    def add(self, verdict: Verdict) -> None:
        row = {
            "own": self._prints.own[verdict.mutant],
            "tree": self._prints.tree,
            "word": verdict.word,
            "seconds": round(verdict.seconds, 1),
            "cpu": round(verdict.cpu, 2),
            "file": verdict.mutant.file,
            "test": verdict.mutant.test,
            "why": verdict.mutant.why,
            "detail": verdict.detail,
        }
        with self._lock:
            KEPT.parent.mkdir(exist_ok=True)
            with KEPT.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


class Run:
    """All benches at work. What may be the machine's doing is tried again at the end, alone."""

    def __init__(self, mutants: list[Mutant], kept: Kept, folder: Path, together: int) -> None:
        self._kept = kept
        self._total = len(mutants)
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._again: list[Verdict] = []
        self._stop = threading.Event()
        self._failed: Exception | None = None
        self.counts: Counter[str] = Counter()
        self.bad: list[Verdict] = []
        pristine = copy(ROOT, folder / "tree")
        wanted = {place for m in mutants if (place := first_changed(pristine, m)) is not None}
        seed = Seed(folder / "seed", wanted)
        groups = group(mutants)
        self._groups: queue.SimpleQueue[list[Mutant]] = queue.SimpleQueue()
        for one in groups:
            self._groups.put(one)
        self._benches = [Bench(pristine, folder / f"m{n}", seed) for n in range(min(together, len(groups)))]

    def go(self) -> None:
        threads = [threading.Thread(target=self._work, args=[bench]) for bench in self._benches]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.5)
            if self._failed is not None:
                raise self._failed
            for doubted in self._again:
                self._tell(self._benches[0].judge(doubted.mutant, 0.0, alone=True), again=True)
        finally:
            self._stop.set()
            for bench in self._benches:
                bench.close()

    def _work(self, bench: Bench) -> None:
        try:
            while not self._stop.is_set():
                self._judge_all(bench, self._groups.get_nowait())
        except queue.Empty:
            pass
        except Exception as error:  # noqa: BLE001 - raised in the main thread
            if not self._stop.is_set():  # else it was closed under us
                self._failed = error
                self._stop.set()

    def _judge_all(self, bench: Bench, mutants: list[Mutant]) -> None:
        unchanged = bench.unchanged(test for m in mutants for test in m.tests)
        for mutant in mutants:
            if self._stop.is_set():
                return
            verdict = judge(bench, mutant, unchanged)
            if verdict.doubtful or verdict.word == "SURVIVED":
                self._again.append(verdict)
                print(
                    f"later: {verdict.word} {mutant.file}: {mutant.why}\n{'':17} {verdict.detail}", flush=True
                )
            else:
                self._tell(verdict)

    def _tell(self, verdict: Verdict, *, again: bool = False) -> None:
        self._kept.add(verdict)
        with self._lock:
            self.counts[verdict.word] += 1
            done = self.counts.total()
            left = (time.monotonic() - self._began) / done * (self._total - done) / 60
            name = Path(verdict.mutant.file).name
            print(
                f"{verdict.word:8} {verdict.seconds:5.1f} s  {name:18} {verdict.mutant.why}"
                f"{' (second try, alone)' if again else ''}   [{done} of {self._total}, {left:.0f} min left]",
                flush=True,
            )
            if verdict.word != "caught":
                self.bad.append(verdict)
                print(f"{'':17} {verdict.detail}", flush=True)


def judge(bench: Bench, mutant: Mutant, unchanged: Unchanged) -> Verdict:
    failed = [f"{test}: {unchanged.failed[test]}" for test in mutant.tests if test in unchanged.failed]
    if failed:
        return Verdict(mutant, "BROKEN", 0.0, f"without any change its test must pass: {failed[0]}")
    return bench.judge(mutant, sum(unchanged.seconds[test] for test in mutant.tests))


def group(mutants: list[Mutant]) -> list[list[Mutant]]:
    """Those of one test file together: its bytecode is made once, and its tests are tried unchanged in one go."""
    inorder = sorted(mutants, key=lambda m: m.test)
    return [inorder[at : at + GROUP] for at in range(0, len(inorder), GROUP)]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--only",
        default=[],
        action="append",
        metavar="SUBSTRING",
        help="those that contain it; may be given again",
    )
    parser.add_argument(
        "--since", metavar="COMMIT", help="those that are new or whose file or test changed since"
    )
    parser.add_argument("--shard", metavar="I/N", help="the I-th of N parts")
    parser.add_argument(
        "--changed", action="store_true", help="not those that were caught with the same entry, file and test"
    )
    parser.add_argument(
        "--again", action="store_true", help="also those that were caught by an interrupted run"
    )
    parser.add_argument(
        "--together", type=int, default=TOGETHER, metavar="N", help="at the same time (%(default)s)"
    )
    return parser.parse_args()


def choose(options: argparse.Namespace) -> tuple[list[Mutant], Kept]:
    mutants = entries.read(ROOT)
    if options.only:
        mutants = [m for m in mutants if any(entries.contains(m, word) for word in options.only)]
    if options.since:
        mutants = entries.since(ROOT, mutants, options.since)
    if options.shard:
        mutants = entries.shard(mutants, options.shard)
    kept = Kept(Prints(entries.tree_print(ROOT), {m: entries.own_print(ROOT, m) for m in mutants}))
    if options.again:
        return mutants, kept
    left = [m for m in mutants if not kept.caught(m, whole=not options.changed)]
    if len(left) < len(mutants):
        print(
            f"{len(mutants) - len(left)} were caught by an earlier run (--again runs them, too)", flush=True
        )
    return left, kept


def main() -> int:
    options = arguments()
    began = time.monotonic()
    mutants, kept = choose(options)
    if not mutants:
        print("no mutant is left to run" if entries.read(ROOT) else "there are no mutants")
        return 0
    with tempfile.TemporaryDirectory(prefix="m", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        run = Run(mutants, kept, Path(folder), options.together)
        run.go()
    for verdict in run.bad:
        print(f"{verdict.word:8} {verdict.mutant.file}: {verdict.mutant.why}\n{'':8} {verdict.detail}")
    minutes = (time.monotonic() - began) / 60
    print(
        f"{run.counts['caught']} of {len(mutants)} caught, in {minutes:.0f} minutes, {options.together} at a time"
    )
    return 1 if run.bad else 0


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # also when started in the background of a script
        signal.signal(number, signal.default_int_handler)
    with quick_folder():
        try:
            code = main()
        except KeyboardInterrupt:
            code = 130
    sys.exit(code)
