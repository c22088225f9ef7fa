"""The planner's choices for the statements of a job's life: none may read or sort a whole queue."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from ...model.job import Grant
from ...model.outcome import Completed, Settlement
from ...store import claim as claims
from ...store import doctor as store
from ...store import jobs
from ...store.catalog import SLOTS, compare, invalid_indexes
from ...store.renew import renew
from ...store.settle import settle
from ...store.statement import Statement
from ...store.sweep import revoke_expired
from ..advice import Advice, run_sql
from ..wording import listed, several
from .finding import Check, Finding, Patient
from .schema import build_indexes, revive_indexes

_NOBODY = UUID(int=0)
_WORKER = "doctor"
# If one of them is switched off, the planner must find another way, and none is cheap.
_PLANNER = ("enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan", "enable_nestloop")

_WALKS = ("claim", "scan_priorities")  # in index order, however much waits
_BIG = 1_000_000  # bytes
_QUEUES = 20  # the largest ones; the others have the same tables and the same plans

Plan = dict[str, Any]


def hot_statements(queue: str) -> list[Statement[Any]]:
    """Statements that run per job or per batch of one queue."""
    grant = Grant(queue, _NOBODY, 1, _NOBODY)
    renewing = renew(_WORKER, [grant], 60.0)
    first = next(renewing)
    return [
        claims.claim(queue, _WORKER, _NOBODY, lease=60.0, limit=10, marks=[(1, None), (0, None)]),
        claims.scan_priorities(queue),
        claims.find_held(queue, [("a", 1), ("b", 1)], 10),
        claims.find_suspects(queue, 10),
        next(settle([Settlement(grant, Completed("null"))], _WORKER)),
        first,
        renewing.send([]),
        jobs.job_status(_NOBODY, queue),
    ]


def troubles(plan: Plan, kept: set[str], big: set[str]) -> Iterator[str]:
    """One of the `kept` tables read from end to end, or a `big` one sorted before a filter."""
    if plan["Node Type"] == "Seq Scan" and plan.get("Relation Name") in kept:
        yield f"reads all of holdfast.{'archive' if plan['Relation Name'] in SLOTS else plan['Relation Name']}"
    if "Sort" in plan["Node Type"]:
        yield from (f"sorts holdfast.{table}" for table in _unlimited(plan, big))
    for child in plan.get("Plans", ()):
        yield from troubles(child, kept, big)


def _unlimited(plan: Plan, big: set[str]) -> Iterator[str]:
    for child in plan.get("Plans", ()):
        if child["Node Type"] in ("Limit", "ModifyTable"):
            continue
        if child.get("Relation Name") in big:
            yield child["Relation Name"]
        yield from _unlimited(child, big)


def check_plans(p: Patient) -> Iterator[Finding]:
    kept = {q.table for q in p.catalog.queues} | set(SLOTS) | {"claims", "dead_letters"}
    found: list[str] = []
    for q in sorted(p.catalog.queues, key=lambda q: -q.bytes)[:_QUEUES]:
        if not (q.queue and q.attached):
            continue
        for statement in [*hot_statements(q.queue), revoke_expired(500)]:
            # Sorting a small table costs nothing, and the others read rows that were named or set aside.
            big = {q.table} if q.bytes >= _BIG and statement.name in _WALKS else set()
            said = sorted(set(troubles(p.probe.plan(statement), kept, big)))
            found += [f"queue {q.queue}: {statement.name} {trouble}" for trouble in said]
    if found:
        lines = list(dict.fromkeys(found))
        what = f"{several(len(lines), 'statement')} of a job's life would read or sort a whole table"
        yield Finding("slow_plan", "error", what, _cause(p), listed(lines))


def _cause(p: Patient) -> list[Advice]:
    """The reason for the plan: a missing index, a disabled switch, or no statistics."""
    fix = []
    if any(d.key.kind == "index" and d.expected for d in compare(p.catalog)):
        fix.append(build_indexes(p))
    if invalid_indexes(p.catalog):
        fix.append(revive_indexes(p))
    _, statements = _switched_off(p)
    if statements:
        fix.append(run_sql(*statements))
    tables = [f"ANALYZE holdfast.{q.table}" for q in p.catalog.queues if q.attached]
    return fix or [run_sql(*tables)]


def check_planner(p: Patient) -> Iterator[Finding]:
    details, statements = _switched_off(p)
    if statements:
        what = "the planner may not use what the statements of a job's life are made for"
        yield Finding("planner_off", "warning", what, [run_sql(*statements)], details)


def _switched_off(p: Patient) -> tuple[list[str], list[str]]:
    """For which roles a kind of plan is disabled, and the statements that enable it."""
    off = [o for o in p.probe.look(store.overrides(_PLANNER)) if o.value == "off"]
    details = [f"{o.name} is off for {o.whose}" for o in off]
    statements = [o.reset for o in off]
    ruled = {o.name for o in off}
    values = p.probe.look(store.settings(_PLANNER))
    if server := [name for name, value in values.items() if value == "off" and name not in ruled]:
        details += [f"{name} is off for the whole server" for name in server]
        statements += [*(f"ALTER SYSTEM SET {name} = on" for name in server), "SELECT pg_reload_conf()"]
    return details, statements


CHECKS = (
    Check("plans", "no statement of a job's life reads or sorts a whole queue", ("slow_plan",), check_plans),
    Check(
        "planner",
        "the planner may use every kind of plan",
        ("planner_off",),
        check_planner,
        needs_schema=False,
    ),
)
