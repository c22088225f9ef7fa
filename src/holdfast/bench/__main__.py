"""`holdfast bench SCENARIO...`: measure this server and this machine. Ratios inside one run are the point."""

import argparse
import difflib
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, NoReturn

import psycopg
from rich.console import Console

from ..errors import ConfigurationError, HoldfastError
from ..model.text import printable
from . import machine
from .context import QUICK, Bench, Sizes, dress
from .quiet import ROUNDS, unrest
from .report import Report, figure, print_results, print_table, read
from .scaling import scaling
from .scenarios import SCENARIOS, every, find
from .server import open_server
from .targets import shares_of_limit, verdicts

USER, ENVIRONMENT, INTERRUPTED = 2, 1, 130


class MeasureFailed(HoldfastError):
    """A scenario could not be measured. Earlier results are kept."""


class NotQuiet(HoldfastError):
    """The machine was uneven, and nothing is published."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(message)


def number(kind: type, least: float) -> Any:
    """A number of an option, and at least so much."""

    def convert(text: str) -> Any:
        try:
            value = kind(text.replace("_", "").replace(",", ""))
        except ValueError:
            value = None
        if value is None or not least <= value < 1e12:
            whole = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {whole} of at least {least:g}")
        return value

    return convert


HELP = {
    "jobs": "jobs of a drain",
    "concurrency": "jobs at a time of an async worker",
    "connections": "of handlers with a transaction",
    "batch": "another batch size of limit",
    "single": "transactions of enqueue",
    "rate": "jobs per second of steady",
    "seconds": "of steady and latency",
    "idle": "seconds of idle",
    "backlog": "jobs that wait in backlog",
    "deep": "jobs of the one key in backlog",
    "claimed": "jobs drained before each backlog",
    "horizon": "jobs of horizon",
    "history": "finished jobs of history; ten million take about 7 GB and some minutes",
    "memory": "jobs of memory",
    "runs": "runs of workflow",
}


def parser() -> Parser:
    options = Parser(
        prog="holdfast bench", description=__doc__, epilog="`holdfast bench list` names the scenarios."
    )
    options.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="what to measure; all: every one")
    options.add_argument("--url", help="measure this server, in temporary databases")
    options.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
    options.add_argument("--append", action="store_true", help="keep the other scenarios that FILE holds")
    options.add_argument("--repeats", type=number(int, 1), help="rounds (default: 5, quick: 1)")
    options.add_argument("--quick", action="store_true", help="small sizes, one round: does it work")
    options.add_argument(
        "--only", action="append", default=[], metavar="VARIANT", help="of drain, limit and backlog"
    )
    options.add_argument(
        "--quiet-check",
        action="store_true",
        help="write nothing, and end with an error, where the machine was busy or the rounds differ by a quarter",
    )
    for field in fields(Sizes):
        kind = int if field.type is int else float
        text = f"{HELP[field.name]} (default: {field.default:,})"
        options.add_argument(
            f"--{field.name.replace('_', '-')}", type=number(kind, 1), metavar="N", help=text
        )
    return options


def chosen(names: Sequence[str]) -> list[str]:
    if not names:
        raise ConfigurationError(f"name a scenario: {', '.join(SCENARIOS)}, or all")
    for name in names:
        if name not in SCENARIOS and name != "all":
            close = difflib.get_close_matches(name, SCENARIOS, 1)
            guess = f" Did you mean {close[0]!r}?" if close else ""
            raise ConfigurationError(
                f"there is no scenario {name!r} (known: {', '.join(SCENARIOS)}, all).{guess}"
            )
    wanted = {w for name in names for w in (every() if name == "all" else [name])}
    return [name for name in SCENARIOS if name in wanted]


def sizes_of(given: argparse.Namespace) -> Sizes:
    named = {f.name: getattr(given, f.name) for f in fields(Sizes) if getattr(given, f.name) is not None}
    return replace(QUICK if given.quick else Sizes(), **named)


def measure(bench: Bench, names: Sequence[str], keep: Callable[[], None]) -> None:
    """Round by round over all scenarios, so that what the machine does meanwhile meets all of them. Every round is kept."""
    runs = {name: find(name) for name in names}
    took, failed = dict.fromkeys(names, 0.0), dict[str, str]()
    for turn in range(bench.repeats):
        bench.round = turn
        for name, run in runs.items():
            bench.say(f"[bold]{name}[/bold], round {turn + 1} of {bench.repeats}")
            if name in failed:
                continue
            began = time.monotonic()
            try:
                run(bench)
            except (
                OSError,
                RuntimeError,
                psycopg.Error,
                subprocess.SubprocessError,
            ) as error:  # the others can still be measured
                failed[name] = bench.report.meta["runs"][name]["failed"] = f"{type(error).__name__}: {error}"
                bench.say(f"{name} failed: {error}")
            took[name] += time.monotonic() - began
            bench.report.meta["runs"][name]["seconds"] = round(took[name], 1)
            keep()
    if failed:
        raise MeasureFailed("; ".join(f"{name}: {reason}" for name, reason in failed.items()))


def show(console: Console, report: Report) -> None:
    for scenario in report.scenarios:
        console.print()
        print_results(console, report.of(scenario), f"{scenario}: {SCENARIOS.get(scenario, '')}")


def save(report: Report, before: Report, path: Path | None) -> None:
    if path is not None:
        report.replace(before).write(path)


def show_targets(console: Console, report: Report) -> None:
    if shares := shares_of_limit(report):
        console.print()
        parts = [(name, f"{share:.0%}") for name, share in shares]
        print_table(console, "drain, of the best of limit", ("variant", "share"), parts)
    if expected := scaling(report):
        console.print()
        lines = [
            (
                str(e.cores),
                str(e.processes),
                figure(e.rate),
                figure(e.measured) if e.measured else "-",
                e.ceiling,
            )
            for e in expected
        ]
        columns = ("cores", "processes", "jobs/s by the model", "measured", "first ceiling")
        print_table(console, "more processes and cores, by what async-1 took", columns, lines)
    found = [v for v in verdicts(report) if v.value is not None]
    if found:
        console.print()
        rows = [(v.name, v.wanted, v.text, v.word) for v in found]
        print_table(console, "figures to reach, from this run", ("figure", "wanted", "measured", ""), rows)


def kept_results(path: Path | None, *, append: bool) -> Report:
    """What `--append` adds to; refuses a file that could not be written after an hour of measuring."""
    if path is None:
        if append:
            raise ConfigurationError("--append needs --json FILE")
        return Report()
    if not path.parent.is_dir():
        raise ConfigurationError(f"--json {path}: there is no folder {path.parent}. Make it first")
    return read(path) if append and path.exists() else Report()


def run(words: Sequence[str], program: str) -> None:
    given = parser().parse_args(words)
    if given.scenarios == ["list"]:
        for name, text in SCENARIOS.items():
            print(f"{name:10}{text}")
        return
    names, sizes = chosen(given.scenarios), sizes_of(given)
    for name in names:
        find(name)
    before = kept_results(given.json, append=given.append)
    console, repeats = Console(), given.repeats or (1 if given.quick else 5)
    if given.quiet_check and repeats < ROUNDS:
        raise ConfigurationError(f"--quiet-check compares rounds: it needs --repeats {ROUNDS} or more")
    with open_server(given.url, dress) as server:
        meta = machine.describe(server.url(server.template), server.is_own)
        command = f"{program} {shlex.join(words)}"
        same = {
            name: meta[name]
            for name in ("holdfast", "python", "build", "loop", "psycopg", "postgresql", "date")
        }
        each = {"command": command, **same, "repeats": repeats, "sizes": asdict(sizes)}
        meta |= {
            "command": command,
            "repeats": repeats,
            "quick": given.quick,
            "runs": {name: dict(each) for name in names},
        }
        for line in machine.lines(meta):
            console.print(line, highlight=False, soft_wrap=True)
        report = Report(meta)
        bench = Bench(server, report, sizes, repeats, quick=given.quick, only=tuple(given.only))
        try:
            measure(bench, names, lambda: save(report, before, None if given.quiet_check else given.json))
        finally:
            show(console, report)
            show_targets(console, report.replace(before))
        if given.quiet_check:
            publish(report, before, given.json)


def publish(report: Report, before: Report, path: Path | None) -> None:
    if reasons := unrest(report):
        raise NotQuiet(f"the machine was not quiet, and nothing is written: {'; '.join(reasons)}")
    save(report, before, path)


def interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main(words: Sequence[str], program: str = "holdfast bench") -> int:
    signal.signal(signal.SIGTERM, interrupt)  # databases and servers of the run are removed then too
    try:
        run(words, program)
    except HoldfastError as error:
        print(f"holdfast: {printable(' '.join(str(error).split()))}", file=sys.stderr)
        return USER if isinstance(error, ConfigurationError) else ENVIRONMENT
    except psycopg.Error as error:
        print(f"holdfast: the database refused: {printable(' '.join(str(error).split()))}", file=sys.stderr)
        return ENVIRONMENT
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
