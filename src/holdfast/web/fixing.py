"""Fixes of the doctor: the effect is shown first, and each is done with a reason."""

from holdfast.errors import ConfigurationError
from holdfast.operate.advice import Advice
from holdfast.operate.doctor.run import FIXES
from holdfast.operate.doctor.thresholds import read_limits
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure
from holdfast.pages import Act, ActResult, Field, Given, Preview

# What each does, and what it locks meanwhile.
_DOES = {
    "vacuum": "These tables are vacuumed, one after the other. Jobs run on meanwhile; a change of a table's form waits.",
    "freeze": "These tables are vacuumed and frozen, one after the other. Jobs run on meanwhile, on slower disks.",
    "horizon": "These sessions are ended, and what their transactions wrote is rolled back. Nothing is locked.",
    "stranded": "These jobs go back to waiting and run again. Their rows are locked for a moment.",
    "archive": "These days of finished jobs, which are past their retention, are emptied.",
}


def _preview(given: Given) -> Procedure[Preview]:
    what = given["fix"].partition(":")[0]
    if what not in FIXES:
        raise ConfigurationError(
            f"there is no fix {given['fix'][:40]!r} (known: {', '.join(FIXES)}, horizon:PID)"
        )
    limits = read_limits(given.get("limits", "").split())
    seen = yield from Operator.doctor.procedure(only=[FIXES[what][1]], limits=limits)
    meant = [one for one in seen.findings if any(_is(given["fix"], advice) for advice in one.fix)]
    if not meant:
        return Preview("There is nothing to fix: the doctor finds nothing of the kind now.", 0)
    lines = [line for one in meant for line in (f"{one.what}.", *one.details[:20])]
    return Preview(_DOES[what], warnings=lines)


def _is(name: str, advice: Advice) -> bool:
    """`horizon` means every session that a finding names."""
    said = str(advice.data.get("name", "")) if advice.code == "fix" else ""
    return said == name or said.partition(":")[0] == name


def _fix(given: Given) -> Procedure[ActResult]:
    limits = read_limits(given.get("limits", "").split())
    found = yield from Operator.fix.procedure(given["fix"], limits=limits)
    return ActResult(" ".join(found.done) or "There was nothing to do.", found.done, "doctor")


def _words(given: Given) -> list[str]:
    limits = [f"--limit={word}" for word in given.get("limits", "").split()]
    return ["doctor", "--fix", given["fix"], *limits]


FIX = Act(
    "doctor fix",
    "Fix",
    _fix,
    (Field("fix"), Field("limits", required=False)),
    _words,
    _preview,
    "admin",
    needs_why=True,
)
