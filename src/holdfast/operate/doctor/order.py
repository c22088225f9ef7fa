"""The order of findings: the worst first, and a cause before its consequences."""

from collections.abc import Sequence

from .finding import Finding

_LEVELS = ("error", "warning", "info")
_STILL = (
    "unserved_queue",
    "paused_queue",
    "paused_task",
    "open_breaker",
    "full_limit",
    "blocked_keys",
    "parked_keys",
)
_READERS = ("stopped_subscription", "unowned_subscription", "blocked_subscription", "paused_subscription")
# Consequences of each cause. Fixing the cause fixes them.
CAUSES: dict[str, tuple[str, ...]] = {
    "dead_rows": ("horizon_session", "horizon_prepared", "horizon_slot"),
    "unusual_backlog": _STILL,
    "dead_letters": ("deadly_jobs", "open_breaker"),
    "failed_schedule": ("deadly_jobs", "open_breaker", "dead_letters"),
    "open_publisher": ("horizon_session",),
    "prepared_publisher": ("horizon_prepared",),
    "lagging_subscription": _READERS,
    "held_log": _READERS,
    "unnumbered_events": ("unserved_queue", "unowned_subscription"),
}


def worst_first(findings: Sequence[Finding]) -> list[Finding]:
    """By level, then by the number of jobs, then in the order of the checks. A consequence comes behind its cause."""
    found = sorted(findings, key=lambda finding: (_level(finding), -finding.jobs))
    ordered: list[Finding] = []
    for finding in found:
        if not any(_causes(other, finding) for other in found):
            ordered.append(finding)
            ordered += [f for f in found if f not in ordered and _causes(finding, f)]
    return ordered


def _causes(one: Finding, other: Finding) -> bool:
    """A remark is no cause of trouble."""
    return one.code in CAUSES.get(other.code, ()) and _level(one) <= _level(other)


def _level(finding: Finding) -> int:
    return _LEVELS.index(finding.level)
