"""Whether the machine was quiet enough for figures that others will read: what was measured must be what it does alone."""

from typing import Any

from .report import Report, is_series

ROUNDS = 3  # fewer say nothing of how even they are
SPREAD = 0.25  # between the best and the worst round of a rate, of the median
LOAD = 0.5  # per core, before anything is measured


def unrest(report: Report) -> list[str]:
    """Why these figures should not be published; empty: they may be."""
    return [*_busy(report.meta), *_uneven(report)]


def _busy(meta: dict[str, Any]) -> list[str]:
    load, cores = meta["load_at_start"], meta["machine"]["cores"] or 1
    if load <= LOAD * cores:
        return []
    return [f"others were at work when it began (load {load:g} on {cores} cores)"]


def _uneven(report: Report) -> list[str]:
    found = []
    for result in report.results:
        if not result.unit.endswith("/s") or is_series(result.variant) or not result.values:
            continue
        spread = (max(result.values) - min(result.values)) / result.median if result.median else 0.0
        if spread > SPREAD:
            found.append(f"{result.scenario} {result.variant} differs by {spread:.0%} between its rounds")
    return found
