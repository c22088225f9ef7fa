"""The results as plots: `python -m holdfast.bench.plots RESULTS.json FOLDER`."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

from ..errors import ConfigurationError, HoldfastError
from . import svg
from .report import Report, read
from .targets import OURS, own_result, peer_results

_COUNT = re.compile(r"waiting-([\d.]+)([kM]?)$")
_TIMES = {"": 1.0, "k": 1e3, "M": 1e6}


def sizes(report: Report, scenario: str) -> dict[str, float]:
    """The parameters of the scenario."""
    found: dict[str, float] = report.meta.get("runs", {}).get(scenario, {}).get("sizes", {})
    return found


def rounds(report: Report, scenario: str, variant: str, parts: int) -> list[list[float]]:
    """A series of `parts` values for each round."""
    found = report.find(scenario, variant)
    values = found.values if found else []
    return [values[start : start + parts] for start in range(0, len(values) - parts + 1, parts)]


def peers(report: Report) -> str | None:
    rates = peer_results(report, "jobs/s")
    ours = own_result(report, "jobs/s", "", ("drain", "async-1"))
    if not rates or ours is None:
        return None
    return svg.bars(
        "No-op jobs per second, one worker process", "jobs/s, median", [(OURS, ours), *rates.items()], OURS
    )


def backlog(report: Report) -> str | None:
    found = [(_COUNT.match(result.variant), result.median) for result in report.of("backlog")]
    points = [(float(match[1]) * _TIMES[match[2]], rate) for match, rate in found if match]
    if len(points) < 2:
        return None
    x = svg.logarithmic("jobs waiting", [p[0] for p in points])
    chart = svg.Chart("Throughput against backlog", x, svg.linear("jobs/s", [p[1] for p in points]))
    chart.line("drain", points, dots=True)
    return chart.svg()


def horizon(report: Report) -> str | None:
    from .scenarios.horizon import PARTS

    series = rounds(report, "horizon", "rate over-time", PARTS)
    if not series:
        return None
    total = sizes(report, "horizon").get("horizon", float(PARTS))
    x = svg.linear("jobs done", [total])
    chart = svg.Chart(
        "A drain while an old snapshot is held", x, svg.linear("jobs/s", [v for s in series for v in s])
    )
    middle = [sorted(values)[len(values) // 2] for values in zip(*series, strict=True)]
    chart.line("drain", [(total * (n + 0.5) / PARTS, rate) for n, rate in enumerate(middle)], dots=True)
    return chart.svg()


def latency(report: Report) -> str | None:
    found = report.find("latency", "start distribution")
    if found is None or len(found.values) < 2:
        return None
    values = sorted(found.values)
    shown = values[: max(2, int(len(values) * 0.999))]
    x = svg.linear("ms from enqueue to the first line of the handler", shown)
    chart = svg.Chart("Latency at 50 jobs/s against an idle worker", x, svg.linear("% of jobs", [100.0]))
    chart.line("start", [(0.0, 0.0)] + [(v, 100 * (n + 1) / len(values)) for n, v in enumerate(shown)])
    return chart.svg()


def memory(report: Report) -> str | None:
    found = report.find("memory", "rss over-jobs")
    if found is None or len(found.values) < 2:
        return None
    total = sizes(report, "memory").get("memory", float(len(found.values)))
    x, y = svg.linear("jobs done", [total]), svg.linear("MB resident", found.values)
    chart = svg.Chart("Memory of a worker over many jobs", x, y)
    step = total / len(found.values)
    chart.line("rss", [(step * (n + 1), value) for n, value in enumerate(found.values)], dots=True)
    return chart.svg()


PLOTS: dict[str, Callable[[Report], str | None]] = {
    "peers": peers,
    "backlog": backlog,
    "horizon": horizon,
    "latency": latency,
    "memory": memory,
}


def draw(report: Report, folder: Path) -> list[Path]:
    """Write every plot that the results have data for."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, plot in PLOTS.items():
        drawn = plot(report)
        if drawn is not None:
            path = folder / f"{name}.svg"
            path.write_text(drawn, encoding="utf-8")
            written.append(path)
    return written


def main() -> int:
    try:
        if len(sys.argv) != 3:
            raise ConfigurationError(
                "say which results and where to: python -m holdfast.bench.plots RESULTS.json FOLDER"
            )
        for path in draw(read(Path(sys.argv[1])), Path(sys.argv[2])):
            print(path)
    except HoldfastError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
