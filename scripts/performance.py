"""Write the figures into docs/performance.md and README.md, and the plots, from docs/performance/results.json.

`<!-- figures: NAME -->` stands before what is written, `<!-- end -->` after it. NAME is a scenario, or one of `machine`,
`targets`, `shares`, `scaling`, `plots`, `readme`. `--check` only compares.
"""

import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from holdfast.bench.plots import draw
from holdfast.bench.report import Report, Result, figure, is_series, read
from holdfast.bench.scaling import scaling
from holdfast.bench.targets import DROPPED, OURS, own_result, peer_of, shares_of_limit, verdicts

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "performance"
RESULTS = FOLDER / "results.json"
DOCUMENTS = [ROOT / "README.md", ROOT / "docs" / "performance.md"]
OWN_NAMES = {OURS: "**Holdfast**", DROPPED: "**Holdfast**, `keep_completed=False`"}
MARK = re.compile(r"(<!-- figures: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
TITLES = {
    "peers": "No-op jobs per second by one worker process, beside other queues",
    "backlog": "Throughput against backlog",
    "horizon": "A drain while an old snapshot is held",
    "latency": "How long a job waits at 50 jobs/s",
    "memory": "Memory of a worker over many jobs",
}


def table(head: list[str], rows: list[list[str]], numbers: int = 0) -> str:
    """A table in Markdown; the columns from the second on that hold numbers stand to the right."""
    rule = ["---", *["---:"] * numbers, *["---"] * (len(head) - 1 - numbers)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *rows]) + "\n"


def scenario(report: Report, name: str) -> str:
    found = [r for r in report.of(name) if not is_series(r.variant)]
    if not found:
        return "Not measured yet.\n"
    rows = [
        [
            r.variant,
            figure(r.median),
            figure(min(r.values)),
            figure(max(r.values)),
            str(len(r.values)),
            r.unit,
        ]
        for r in found
    ]
    said = report.meta.get("runs", {}).get(name, {})
    how = f"`{said['command']}`, {said['date'][:10]}\n" if said else ""
    head = ["variant", "median", "lowest", "highest", "rounds", "unit"]
    return (
        table(head, rows, numbers=4) + "\n" + how + "".join(f"\n{line}\n" for line in left_out(report, name))
    )


def left_out(report: Report, name: str = "peers") -> list[str]:
    """What could not be measured, with the reason."""
    found = report.meta.get("runs", {}).get(name, {}).get("left_out", {})
    return [f"Not measured: {peer}: {why}." for peer, why in found.items()]


def machine(report: Report) -> str:
    meta = report.meta
    there, settings = meta["machine"], meta["settings"]
    hard = f"{there['cpu']}, {there['cores']} cores, {there['memory_gb']} GB, {there['system']}"
    lines = [
        f"Holdfast {meta['holdfast']}, Python {meta['python']} ({meta['loop']}), psycopg {meta['psycopg']}.",
        f"PostgreSQL {meta['postgresql']}, {meta['server']}.",
        f"{hard}; load {meta['load_at_start']} at the start, {meta['date'][:10]}.",
        "Settings: " + ", ".join(f"`{name} = {value}`" for name, value in settings.items()) + ".",
    ]
    return "\n".join([*lines, *quick(report)]) + "\n"


def quick(report: Report) -> list[str]:
    return ["**A quick run: the sizes are too small to say much.**"] if report.meta.get("quick") else []


def targets(report: Report) -> str:
    rows = [[v.name, v.wanted, v.text, v.word] for v in verdicts(report)]
    return table(["figure", "wanted", "measured", ""], rows, numbers=2)


def shares(report: Report) -> str:
    rows = [[name, f"{share:.0%}"] for name, share in shares_of_limit(report)]
    return table(["drain", "of the best of limit"], rows, numbers=1) if rows else "Not measured yet.\n"


def model(report: Report) -> str:
    head = ["cores", "processes", "jobs/s by the model", "measured", "of it", "WAL, MB/s", "first ceiling"]
    rows = [
        [
            str(one.cores),
            str(one.processes),
            figure(one.rate),
            "-" if one.measured is None else figure(one.measured),
            "-" if one.measured is None else f"{one.measured / one.rate:.2f}",
            "-" if one.wal is None else figure(one.wal),
            one.ceiling,
        ]
        for one in scaling(report)
    ]
    return table(head, rows, numbers=5) if rows else "Not measured yet.\n"


def plots(report: Report) -> str:
    with tempfile.TemporaryDirectory() as folder:
        names = [path.stem for path in draw(report, Path(folder))]
    return "".join(f"![{TITLES[name]}](performance/{name}.svg)\n" for name in names) or "Not measured yet.\n"


def readme(report: Report) -> str:
    """Ours beside the peers, the quickest first."""
    rates = {peer_of(r): r.median for r in report.of("peers") if r.unit == "jobs/s"}
    own = own_result(report, "jobs/s", "", ("drain", "async-1"))
    if own is not None:
        rates = {OURS: own, **{peer: rate for peer, rate in rates.items() if peer != OURS}}
    rows = []
    for peer, rate in sorted(rates.items(), key=lambda item: -item[1]):
        name = OWN_NAMES.get(peer, peer)
        rows.append([name, figure(rate), *(waited(report, peer, share) for share in ("p50", "p99"))])
    if not rows:
        return "Not measured yet.\n"
    meta = report.meta
    kind = f"PostgreSQL {meta['postgresql']}, Python {meta['python']} ({meta['loop']}), {meta['machine']['cores']} cores"
    head = ["no-op jobs, one worker process", "jobs/s", "latency p50, ms", "p99, ms"]
    rounds = max(len(r.values) for r in report.of("peers") if r.unit == "jobs/s")
    how = f"Median of {rounds}; {kind}; made by `make bench`."
    note = (
        "Latency is from just before the enqueue to the first line of the handler, at 50 jobs/s. "
        "pg-boss calls its handler once for up to 5,000 jobs, the others once for each; "
        "not all of them refuse the completion of a late owner. "
        "What each promises: [docs/performance-peers.md](docs/performance-peers.md)."
    )
    more = "How, and everything else: [docs/performance.md](docs/performance.md)."
    return (
        table(head, rows, numbers=3)
        + "\n"
        + "\n".join([how, note, *left_out(report), *quick(report), more])
        + "\n"
    )


def waited(report: Report, peer: str, share: str) -> str:
    found: list[Result] = [
        r for r in report.of("peers") if r.unit == "ms" and r.variant.endswith(share) and peer_of(r) == peer
    ]
    if found:
        return figure(found[0].median)
    own = report.median("latency", f"start {share}") if peer == OURS else None
    return "-" if own is None else figure(own)


OTHERS: dict[str, Callable[[Report], str]] = {
    "machine": machine,
    "scaling": model,
    "shares": shares,
    "targets": targets,
    "plots": plots,
    "readme": readme,
}


def refreshed(text: str, report: Report) -> str:
    def content(name: str) -> str:
        return OTHERS[name](report) if name in OTHERS else scenario(report, name)

    return MARK.sub(lambda m: m[1] + content(m[2]) + m[4], text)


def main() -> int:
    check, report, stale = "--check" in sys.argv, read(RESULTS), []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        fresh = refreshed(text, report)
        if fresh != text:
            stale.append(path.name)
            if not check:
                path.write_text(fresh, encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        for drawn in draw(report, Path(folder)):
            there = FOLDER / drawn.name
            if not there.exists() or there.read_bytes() != drawn.read_bytes():
                stale.append(f"performance/{drawn.name}")
                if not check:
                    there.write_bytes(drawn.read_bytes())
    if stale:
        print(("out of date, run scripts/performance.py: " if check else "rewritten: ") + ", ".join(stale))
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
