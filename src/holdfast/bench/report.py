"""Results: a value per round for each scenario and variant, as tables and as JSON."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..errors import ConfigurationError


@dataclass(slots=True)
class Result:
    scenario: str
    variant: str
    unit: str
    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def as_json(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario,
            "variant": self.variant,
            "unit": self.unit,
            "median": _short(self.median),
            "min": _short(min(self.values)),
            "max": _short(max(self.values)),
            "runs": [_short(v) for v in self.values],
        }


def _short(value: float) -> float:
    """Four digits are more than a measurement has."""
    return float(f"{value:.5g}")


@dataclass
class Report:
    meta: dict[str, Any] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)

    def add(self, scenario: str, variant: str, unit: str, *values: float) -> None:
        """One more round of a result, or the whole of a series."""
        found = self.find(scenario, variant)
        if found is None:
            found = Result(scenario, variant, unit)
            self.results.append(found)
        found.values.extend(values)

    def find(self, scenario: str, variant: str) -> Result | None:
        return next((r for r in self.results if (r.scenario, r.variant) == (scenario, variant)), None)

    def median(self, scenario: str, variant: str) -> float | None:
        found = self.find(scenario, variant)
        return found.median if found and found.values else None

    @property
    def scenarios(self) -> list[str]:
        return list(dict.fromkeys(r.scenario for r in self.results))

    def of(self, scenario: str) -> list[Result]:
        return [r for r in self.results if r.scenario == scenario and r.values]

    def as_json(self) -> dict[str, Any]:
        return {"meta": self.meta, "results": [r.as_json() for r in self.results if r.values]}

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.as_json(), indent=1) + "\n", encoding="utf-8")

    def replace(self, others: "Report") -> "Report":
        """The results of this run, and from `others` those of missing scenarios. meta.runs says when and how."""
        mine = set(self.scenarios)
        kept = [r for r in others.results if r.scenario not in mine]
        runs = {k: v for k, v in others.meta.get("runs", {}).items() if k not in mine}
        return Report({**self.meta, "runs": {**runs, **self.meta.get("runs", {})}}, kept + self.results)


def read(path: Path) -> Report:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        results = [Result(r["scenario"], r["variant"], r["unit"], list(r["runs"])) for r in found["results"]]
        return Report(dict(found["meta"]), results)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigurationError(f"{path} holds no results of holdfast bench") from None


def figure(value: float) -> str:
    """As a person reads it: 41,230 or 12.4 or 0.031."""
    size = abs(value)
    if size >= 10:
        return f"{value:,.0f}" if size >= 100 else f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3g}"


SERIES = (
    "over-time",
    "over-jobs",
    "distribution",
)  # variants whose runs are one curve, not rounds of one figure


def is_series(variant: str) -> bool:
    return variant.endswith(SERIES)


def print_results(console: Console, results: Iterable[Result], title: str) -> None:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("variant")
    for name in ("median", "min", "max", "runs"):
        table.add_column(name, justify="right")
    table.add_column("unit")
    for result in results:
        if is_series(result.variant):
            continue
        spread = [figure(v) for v in (result.median, min(result.values), max(result.values))]
        table.add_row(result.variant, *spread, str(len(result.values)), result.unit)
    console.print(table)


def print_table(console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    console.print(table)
