"""All checks in order, and the acts of `--fix`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ...db import migrate
from ...db.database import Database
from ...db.probe import Probe
from ...errors import ConfigurationError, DatabaseError
from ...model.actor import Actor
from ...store.audit import audit
from ..advice import Knows
from ..procedure import Procedure, actor, block
from ..wording import cut
from . import connection, jobs, keys, plans, schema, server, waiting
from .finding import Check, Finding, Left, NotChecked, Patient
from .thresholds import Limits

CHECKS: tuple[Check, ...] = (
    *schema.CHECKS,
    *plans.CHECKS,
    *server.CHECKS,
    *connection.CHECKS,
    *jobs.CHECKS,
    *waiting.CHECKS,
    *keys.CHECKS,
)

_Fix = Callable[[Patient], Iterator[str]]
# What `--fix NAME` does, and the check that shows whether it helped.
FIXES: dict[str, tuple[_Fix, str]] = {
    "vacuum": (server.fix_vacuum, "vacuum"),
    "freeze": (server.fix_freeze, "vacuum"),
    "horizon": (server.fix_horizon, "horizon"),
    "stranded": (jobs.fix_stranded, "stranded"),
    "archive": (jobs.fix_archive, "archive"),
}


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of one check: nothing found, findings, or why it was not made."""

    name: str
    about: str
    findings: list[Finding]
    not_checked: str | None = None
    is_slow: bool = False  # not checked, because a statement took longer than the limit


@dataclass(frozen=True, slots=True)
class Diagnosis:
    checks: list[Checked]
    done: list[str] = field(default_factory=list)  # what a fix did

    @property
    def findings(self) -> list[Finding]:
        return [finding for check in self.checks for finding in check.findings]

    def count(self, level: str) -> int:
        return sum(finding.level == level for finding in self.findings)

    @property
    def not_checked(self) -> int:
        return sum(check.not_checked is not None for check in self.checks)

    def is_fine(self, *, strict: bool = False) -> bool:
        """No errors; strictly: no warnings either, and every check was made."""
        bad = self.count("error")
        return not (bad + self.count("warning") + self.not_checked if strict else bad)


def doctor(
    *,
    only: Sequence[str] = (),
    limits: Limits | None = None,
    knows: Knows | None = None,
    checks: Sequence[Check] = CHECKS,
) -> Procedure[Diagnosis]:
    """Make every check, or those named by `only`. Nothing is changed.

    `knows` says what the app can run. `checks` are the engine's, unless a surface has those of the shapes too.
    """
    wanted = _wanted(only, checks)
    chosen = limits or Limits()

    def look(database: Database) -> Diagnosis:
        with Probe(database, chosen.statement) as probe:
            patient = Patient(database, probe, chosen, knows or _knows_all)
            return Diagnosis(_examine(patient, wanted, set(only)))

    return (yield from block(look))


def fix(
    name: str,
    *,
    limits: Limits | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> Procedure[Diagnosis]:
    """Do what a finding advises, reporting each finished step, then check again."""
    what, _, which = name.partition(":")
    if what not in FIXES or (which and what != "horizon"):
        raise ConfigurationError(f"there is no fix {name!r} (known: {', '.join(FIXES)}, horizon:PID)")
    who = yield from actor()
    chosen = limits or Limits()
    return (yield from block(lambda database: _fix(database, name, chosen, who, on_step)))


def _fix(
    database: Database, name: str, limits: Limits, who: Actor, on_step: Callable[[str], None]
) -> Diagnosis:
    what, _, which = name.partition(":")
    migrate.status(database.dsn).verify()
    act, check = FIXES[what]
    done: list[str] = []
    with Probe(database, limits.statement) as probe:
        patient = Patient(database, probe, limits, _knows_all, who)
        try:
            for line in server.fix_horizon(patient, which) if which else act(patient):
                done.append(line)
                on_step(line)
        finally:  # steps before an error are done
            acted = [line for line in done if not isinstance(line, Left)]
            if acted and what != "stranded":  # which writes it in the transaction that does it
                said = {"fix": name, "done": [cut(line, 300) for line in acted[:50]]}
                database.run(lambda: audit(who, "doctor fix", said, len(acted)))
        again = Patient(database, probe, limits, _knows_all)
        return Diagnosis(_examine(again, _wanted([check]), set()), done)


def _knows_all(task: str, version: int) -> bool:
    return True


def _wanted(only: Sequence[str], checks: Sequence[Check] = CHECKS) -> list[Check]:
    known = [check.name for check in checks]
    codes = {code for check in checks for code in check.codes}
    for name in only:
        if name not in known and name not in codes:
            raise ConfigurationError(f"there is no check {name!r} (known: {', '.join(known)})")
    return [c for c in checks if not only or c.name in only or set(c.codes) & set(only)]


def _examine(patient: Patient, checks: Sequence[Check], only: set[str]) -> list[Checked]:
    found = migrate.status(patient.database.dsn)
    if not found.pending:
        found.verify()
    made = []
    for check in checks:
        if check.needs_schema and found.pending:
            made.append(Checked(check.name, check.about, [], "migrations are pending"))
        elif check.compares and found.is_newer:
            why = f"the database is at {found.current}, this release knows up to {found.known}"
            made.append(Checked(check.name, check.about, [], why))
        else:
            made.append(_make(patient, check, only))
    return made


def _make(patient: Patient, check: Check, only: set[str]) -> Checked:
    findings: list[Finding] = []
    why, is_slow = None, False
    try:
        for finding in check.run(patient):
            if not only or check.name in only or finding.code in only:
                findings.append(finding)  # noqa: PERF401 findings before it stopped count
    except (
        NotChecked,
        DatabaseError,
    ) as error:  # a privilege, a timeout, a lock, or a feature that the server lacks
        why = cut(str(error), 300)
        is_slow = "statement timeout" in why
        if is_slow:
            why = f"it takes longer than {patient.limits.statement:g} s ({why})"
    return Checked(check.name, check.about, findings, why, is_slow)
