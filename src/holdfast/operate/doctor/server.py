"""The server: durability, vacuum, and who holds back the horizon."""

import functools
from collections.abc import Iterator

from ...db.migrate.repair import ident, literal
from ...errors import ConfigurationError
from ...store import doctor as store
from ...store.doctor import Holder, Vacuumed
from ..wording import cut, listed, several, span
from .finding import Check, Finding, NotChecked, Patient

_RELOAD = "SELECT pg_reload_conf()"
_DURABLE = {
    "fsync": "a crash of the machine may lose or corrupt everything",
    "full_page_writes": "a crash of the machine may leave pages that are half old, half new",
}
_ASYNC = ("off",)


# Durability ---------------------------------------------------------------------------------------------------------


def check_durability(p: Patient) -> Iterator[Finding]:
    values = p.probe.look(store.settings(("fsync", "full_page_writes", "synchronous_commit")))
    for name, danger in _DURABLE.items():
        if values[name] == "off":
            fix = [p.psql(f"ALTER SYSTEM SET {name} = on", _RELOAD)]
            yield Finding(f"{name}_off", "error", f"{name} is off: {danger}", fix)
    own = [o for o in p.probe.look(store.overrides(("synchronous_commit",))) if o.value in _ASYNC]
    fix = [o.reset for o in own]
    details = [f"set for {o.whose}" for o in own]
    if values["synchronous_commit"] in _ASYNC and not own:
        fix = ["ALTER SYSTEM SET synchronous_commit = on", _RELOAD]
        details = ["set for the whole server"]
    if fix:
        what = "synchronous_commit is off: a crash of the server may lose jobs whose enqueue has returned"
        yield Finding("synchronous_commit_off", "warning", what, [p.psql(*fix)], details)


# Vacuum -------------------------------------------------------------------------------------------------------------


def check_vacuum(p: Patient) -> Iterator[Finding]:
    values = p.probe.look(store.settings(("autovacuum", "track_counts")))
    if off := [name for name, value in values.items() if value == "off"]:
        fix = [p.psql(*(f"ALTER SYSTEM SET {name} = on" for name in off), _RELOAD)]
        what = f"{' and '.join(off)} {'is' if len(off) == 1 else 'are'} off: nothing removes what finished jobs leave"
        yield Finding("autovacuum_off", "error", what, fix)
    tables = p.probe.look(store.vacuum_state())
    if alone := [t.table for t in tables if t.off]:
        fix = [p.psql(*(f"ALTER TABLE holdfast.{ident(t)} RESET (autovacuum_enabled)" for t in alone))]
        what = f"autovacuum is off for {several(len(alone), 'table')} of Holdfast"
        yield Finding("autovacuum_off_table", "error", what, fix, [f"holdfast.{t}" for t in alone])
    if bloated := _bloated(p, tables):
        what = (
            f"{several(len(bloated), 'table')} with many dead rows: claims and sweeps read past all of them"
        )
        yield Finding("dead_rows", "warning", what, [p.fixing("vacuum")], listed([_dead(t) for t in bloated]))
    if old := _old(p, tables):
        what = f"{several(len(old), 'table')} not frozen for so long that the server may stop writing"
        details = [f"holdfast.{t.table}: {t.xid_age:,} transactions" for t in old]
        yield Finding("xid_age", "error", what, [p.fixing("freeze")], listed(details))


def _bloated(p: Patient, tables: list[Vacuumed]) -> list[Vacuumed]:
    return [t for t in tables if t.dead >= max(p.limits.dead_rows, 1)]


def _old(p: Patient, tables: list[Vacuumed]) -> list[Vacuumed]:
    return [t for t in tables if t.xid_age >= p.limits.xid_age]


def _dead(t: Vacuumed) -> str:
    when = "never vacuumed" if t.seconds is None else f"vacuumed {span(t.seconds)} ago"
    return f"holdfast.{t.table}: {t.dead:,} dead, {t.live:,} live, {when}"


def fix_vacuum(p: Patient) -> Iterator[str]:
    return _vacuum(p, _bloated(p, p.probe.look(store.vacuum_state())), "VACUUM")


def fix_freeze(p: Patient) -> Iterator[str]:
    return _vacuum(p, _old(p, p.probe.look(store.vacuum_state())), "VACUUM (FREEZE)")


def _vacuum(p: Patient, tables: list[Vacuumed], verb: str) -> Iterator[str]:
    for t in tables:
        p.probe.mend(f"{verb} holdfast.{ident(t.table)}", concurrently=True)
        yield f"{verb} holdfast.{t.table}"


# The horizon --------------------------------------------------------------------------------------------------------


def check_horizon(p: Patient) -> Iterator[Finding]:
    holders = p.probe.look(store.horizon_sessions(p.limits.horizon, int(p.limits.horizon_xids)))
    if holders:
        what = f"{several(len(holders), 'session')} in a transaction for long: nothing deleted since can be removed"
        fix = [f"holdfast doctor --fix horizon:{h.pid}" for h in holders]
        yield Finding("horizon_session", "warning", what, fix, listed([_holder(h) for h in holders]))
    if prepared := p.probe.look(store.horizon_prepared(p.limits.horizon)):
        what = f"{several(len(prepared), 'prepared transaction')} that nobody ends: nothing deleted since can be removed"
        fix = [p.psql(f"ROLLBACK PREPARED {literal(t.gid)}") for t in prepared]
        details = [f"{cut(t.gid)} of {t.owner}, prepared {span(t.seconds)} ago" for t in prepared]
        otherwise = [p.psql(f"COMMIT PREPARED {literal(t.gid)}") for t in prepared]
        yield Finding("horizon_prepared", "error", what, fix, listed(details), otherwise)
    yield from _slots(p)
    if not p.server.sees_all:
        raise NotChecked(
            f"sessions of other roles cannot be seen: GRANT pg_read_all_stats TO {p.server.role}"
        )


def _holder(h: Holder) -> str:
    since = (
        f"{span(h.seconds)} in a transaction"
        if h.seconds is not None
        else f"{h.transactions:,} transactions old"
    )
    who = ", ".join(filter(None, (h.role, h.application)))
    return f"pid {h.pid} ({cut(who)}), {h.state}, {since}: {cut(h.query)}"


def _slots(p: Patient) -> Iterator[Finding]:
    slots = p.probe.look(store.horizon_slots(int(p.limits.horizon_xids)))
    if slots:
        what = f"{several(len(slots), 'replication slot')} far behind: vacuum cannot remove what they may still want"
        fix = [p.psql(f"SELECT pg_drop_replication_slot({literal(s.name)})") for s in slots]
        details = [
            f"{s.name} ({s.kind}, {'in use' if s.active else 'not in use'}): {s.transactions:,} transactions behind"
            + (" (catalogs only)" if s.catalogs_only else "")
            + (f", keeps {s.wal / 2**20:,.0f} MiB of WAL" if s.wal is not None else "")
            for s in slots
        ]
        yield Finding("horizon_slot", "warning", what, fix, listed(details))


def fix_horizon(p: Patient, pid: str = "") -> Iterator[str]:
    """End one session, or all that are in a transaction for longer than the limit."""
    if pid and not pid.isdigit():
        raise ConfigurationError(f"horizon:{pid} names no process. Write horizon:PID, such as horizon:4711")
    holders = p.probe.look(store.horizon_sessions(p.limits.horizon, int(p.limits.horizon_xids)))
    for one in [int(pid)] if pid else [h.pid for h in holders]:
        ended = p.database.run(functools.partial(store.end_session, one))
        yield f"ended: session {one}" if ended else f"session {one} holds nothing here any more"


CHECKS = (
    Check(
        "durability",
        "a commit is on disk before it returns",
        ("fsync_off", "full_page_writes_off", "synchronous_commit_off"),
        check_durability,
        needs_schema=False,
    ),
    Check(
        "vacuum",
        "vacuum keeps up",
        ("autovacuum_off", "autovacuum_off_table", "dead_rows", "xid_age"),
        check_vacuum,
    ),
    Check(
        "horizon",
        "nobody holds back the horizon",
        ("horizon_session", "horizon_prepared", "horizon_slot"),
        check_horizon,
        needs_schema=False,
    ),
)
