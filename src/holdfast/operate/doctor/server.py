"""The server: durability, vacuum, and which sessions hold back the horizon."""

import functools
from collections.abc import Iterator

from ...errors import ConfigurationError
from ...store import doctor as store
from ...store.doctor import Holder, Vacuumed
from ..advice import Advice, advise, run_sql
from ..wording import cut, listed, several, span
from .connection import direct_address
from .finding import Check, Finding, Left, NotChecked, Patient
from .statements import ident, literal

_RELOAD = "SELECT pg_reload_conf()"
_DURABLE = {
    "fsync": "a crash of the machine may lose or corrupt everything",
    "full_page_writes": "a crash of the machine may leave pages that are half old, half new",
}
_ASYNC = ("off",)


# Writing ------------------------------------------------------------------------------------------------------------


def check_writable(p: Patient) -> Iterator[Finding]:
    if p.server.standby:
        what = "the server is a standby: nothing can be enqueued, claimed or settled here"
        fix = [advise("use_database_url", url=f"postgresql://{p.server.user}@PRIMARY/{p.server.name}")]
    elif (found := p.probe.look(store.writes())).refused:
        what = "default_transaction_read_only is on: nothing can be enqueued, claimed or settled"
        fix = _writing_again(p, found.source)
    else:
        return
    yield Finding("read_only", "error", what, fix)


def _writing_again(p: Patient, source: str) -> list[Advice]:
    """If it is set for this role or database, the fix resets it there; other roles may be meant to read only."""
    if source == "client":  # by an option in the address
        return [direct_address(p)]
    role, database = f"role {p.server.user}", f"database {p.server.name}"
    ours = (role, database, f"{role} in {database}")
    own = [
        o.reset for o in p.probe.look(store.overrides(("default_transaction_read_only",))) if o.whose in ours
    ]
    allowed = "SET default_transaction_read_only = off"  # for this session, which will change something
    if own:
        return [run_sql(allowed, *own)]
    return [run_sql("ALTER SYSTEM SET default_transaction_read_only = off", _RELOAD)]


# Durability ---------------------------------------------------------------------------------------------------------


def check_durability(p: Patient) -> Iterator[Finding]:
    values = p.probe.look(store.settings(("fsync", "full_page_writes", "synchronous_commit")))
    for name, danger in _DURABLE.items():
        if values[name] == "off":
            fix = [run_sql(f"ALTER SYSTEM SET {name} = on", _RELOAD)]
            yield Finding(f"{name}_off", "error", f"{name} is off: {danger}", fix)
    own = [o for o in p.probe.look(store.overrides(("synchronous_commit",))) if o.value in _ASYNC]
    statements = [o.reset for o in own]
    details = [f"set for {o.whose}" for o in own]
    if values["synchronous_commit"] in _ASYNC and not own:
        statements = ["ALTER SYSTEM SET synchronous_commit = on", _RELOAD]
        details = ["set for the whole server"]
    if statements:
        what = "synchronous_commit is off: a crash of the server may lose jobs whose enqueue has returned"
        yield Finding("synchronous_commit_off", "warning", what, [run_sql(*statements)], details)


# Vacuum -------------------------------------------------------------------------------------------------------------


def check_vacuum(p: Patient) -> Iterator[Finding]:
    values = p.probe.look(store.settings(("autovacuum", "track_counts")))
    if off := [name for name, value in values.items() if value == "off"]:
        fix = [run_sql(*(f"ALTER SYSTEM SET {name} = on" for name in off), _RELOAD)]
        what = f"{' and '.join(off)} {'is' if len(off) == 1 else 'are'} off: nothing removes what finished jobs leave"
        yield Finding("autovacuum_off", "error", what, fix)
    tables = p.probe.look(store.vacuum_state())
    if alone := [t.table for t in tables if t.off]:
        fix = [run_sql(*(f"ALTER TABLE holdfast.{ident(t)} RESET (autovacuum_enabled)" for t in alone))]
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
    return [t for t in tables if p.limits.has_dead_rows(t.dead)]


def _old(p: Patient, tables: list[Vacuumed]) -> list[Vacuumed]:
    return [t for t in tables if p.limits.is_unfrozen(t.xid_age)]


def _dead(t: Vacuumed) -> str:
    when = "never vacuumed" if t.seconds is None else f"vacuumed {span(t.seconds)} ago"
    return f"holdfast.{t.table}: {t.dead:,} dead, {t.live:,} live, {when}"


def fix_vacuum(p: Patient) -> Iterator[str]:
    return _vacuum(p, _bloated(p, p.probe.look(store.vacuum_state())), "VACUUM")


def fix_freeze(p: Patient) -> Iterator[str]:
    return _vacuum(p, _old(p, p.probe.look(store.vacuum_state())), "VACUUM (FREEZE)")


def _vacuum(p: Patient, tables: list[Vacuumed], verb: str) -> Iterator[str]:
    for t in tables:
        p.probe.run_alone(f"{verb} holdfast.{ident(t.table)}")
        yield f"{verb} holdfast.{t.table}"


# The horizon --------------------------------------------------------------------------------------------------------


def check_horizon(p: Patient) -> Iterator[Finding]:
    holders = p.probe.look(store.horizon_sessions(p.limits.horizon, int(p.limits.horizon_xids)))
    if holders:
        what = f"{several(len(holders), 'session')} in a transaction for long: nothing deleted since can be removed"
        fix = [p.fixing(f"horizon:{h.pid}") for h in holders]
        lasts = max((h.seconds for h in holders if h.seconds is not None), default=None)
        yield Finding(
            "horizon_session", "warning", what, fix, listed([_holder(h) for h in holders]), lasts=lasts
        )
    if prepared := p.probe.look(store.horizon_prepared(p.limits.horizon)):
        what = f"{several(len(prepared), 'prepared transaction')} that nobody ends: nothing deleted since can be removed"
        fix = [run_sql(f"ROLLBACK PREPARED {literal(t.gid)}") for t in prepared]
        details = [f"{cut(t.gid)} of {t.owner}, prepared {span(t.seconds)} ago" for t in prepared]
        otherwise = [run_sql(f"COMMIT PREPARED {literal(t.gid)}") for t in prepared]
        lasts = max(t.seconds for t in prepared)
        yield Finding("horizon_prepared", "error", what, fix, listed(details), otherwise, lasts=lasts)
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
    slots = p.probe.look(store.horizon_slots(int(p.limits.horizon_xids), int(p.limits.wal)))
    if slots:
        what = f"{several(len(slots), 'replication slot')} far behind: vacuum cannot remove what they may still want"
        unused = [s.name for s in slots if not s.active]
        fix = [run_sql(f"SELECT pg_drop_replication_slot({literal(name)})") for name in unused]
        if len(unused) < len(slots):  # its reader must catch up, or be removed
            fix.append(run_sql("SELECT * FROM pg_stat_replication"))
        details = [
            f"{s.name} ({s.kind}, {'in use' if s.active else 'not in use'}): {s.transactions or 0:,} transactions behind"
            + (" (catalogs only)" if s.catalogs_only else "")
            + (f", keeps {s.wal / 2**20:,.0f} MiB of WAL" if s.wal is not None else "")
            for s in slots
        ]
        yield Finding("horizon_slot", "warning", what, fix, listed(details))


def fix_horizon(p: Patient, pid: str = "") -> Iterator[str]:
    """End one session, or all that have been in a transaction for longer than the limit."""
    if pid and not pid.isdigit():
        raise ConfigurationError(f"horizon:{pid} names no process. Write horizon:PID, such as horizon:4711")
    limit, xids = p.limits.horizon, int(p.limits.horizon_xids)
    for one in [int(pid)] if pid else [h.pid for h in p.probe.look(store.horizon_sessions(limit, xids))]:
        if p.database.run(functools.partial(store.end_session, one, limit, xids)):
            yield f"ended: session {one}"
        else:
            what = f"is no session of this database in a transaction for {limit:g} s or more"
            yield Left(f"left: {one} {what}")


CHECKS = (
    Check("writable", "the database can be written to", ("read_only",), check_writable, needs_schema=False),
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
