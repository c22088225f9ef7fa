"""Durability, vacuum and the horizon: each fault made, found, mended by the printed command, and gone."""

import json
import re
import shutil
from pathlib import Path

import psycopg
import pytest
from tests.conftest import wait_until
from tests.doctor.case import Case, transaction
from tests.pg_versions import server_folder

from holdfast.db import migrate
from holdfast.db.embedded import EmbeddedOptions, EmbeddedServer
from holdfast.db.embedded.manage import stop
from holdfast.db.embedded.place import locate
from holdfast.db.probe import Probe
from holdfast.errors import ConfigurationError, DatabaseError
from holdfast.model.actor import Actor
from holdfast.store.audit import AuditFilter, audit, list_audit
from holdfast.store.doctor import settings
from holdfast.testing import Kit


def name_of(case: Case) -> str:
    (row,) = case.sql("SELECT quote_ident(current_database()) AS name")
    return str(row["name"])


# Writing -----------------------------------------------------------------------------------------------------------


def test_read_only(case: Case) -> None:
    """Set for the database and for our role in it. Looking still works, at everything."""
    name = name_of(case)
    case.sql(
        f"ALTER DATABASE {name} SET default_transaction_read_only = true;"
        f"ALTER ROLE postgres IN DATABASE {name} SET default_transaction_read_only = on"
    )
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        case.sql("SELECT holdfast.enqueue('work')")
    report = json.loads(case.doctor("--json").stdout)
    assert {c["not_checked"] for c in report["checks"]} == {None}, report
    finding = case.cure("read_only")
    assert finding["level"] == "error"
    case.sql("SELECT holdfast.enqueue('work')")


def test_read_only_leaves_other_roles_alone(case: Case) -> None:
    name = name_of(case)
    case.sql(f"CREATE ROLE reader_{name}")
    try:
        case.sql(f"ALTER ROLE reader_{name} SET default_transaction_read_only = on")
        assert case.found("read_only") is None
        case.sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        case.cure("read_only")
        assert case.sql("SELECT rolconfig FROM pg_roles WHERE rolname = %s", [f"reader_{name}"]) == [
            {"rolconfig": ["default_transaction_read_only=on"]}
        ]
    finally:
        case.sql(f"DROP ROLE reader_{name}")


def test_read_only_by_the_address(case: Case) -> None:
    case.url = psycopg.conninfo.make_conninfo(case.url, options="-c default_transaction_read_only=on")
    assert case.cure("read_only")["fix"][0].startswith("export HOLDFAST_DATABASE_URL=")


def test_read_only_for_the_whole_server(odd: Case) -> None:
    odd.sql("ALTER SYSTEM SET default_transaction_read_only = on")
    odd.sql("SELECT pg_reload_conf()")
    wait_until(lambda: odd.found("read_only") is not None, "the server has read it")
    odd.cure("read_only")


def test_read_only_on_a_standby(tmp_path: Path) -> None:
    """The printed command names the primary, which only the reader knows. Looking works there, but for LISTEN."""
    home = server_folder("hf-by-")
    home.chmod(0o755)  # the server of a root process runs as somebody else
    options = EmbeddedOptions(durable=False, settings={"wal_level": "replica"})
    try:
        with EmbeddedServer.acquire(home / "pg", options) as server:
            server.ensure_database()
            migrate.up(server.dsn())
        stop(home / "pg", force=True)
        place = locate(home / "pg")
        assert place is not None
        (place.data / "standby.signal").touch()
        with EmbeddedServer.acquire(home / "pg", options) as server:
            case = Case(server.dsn(), tmp_path)
            finding = case.found("read_only")
            assert finding is not None
            assert finding["what"].startswith("the server is a standby")
            assert finding["fix"][0].startswith("export HOLDFAST_DATABASE_URL=postgresql://postgres@PRIMARY/")
            report = json.loads(case.doctor("--json").stdout)
            assert [c["name"] for c in report["checks"] if c["not_checked"]] == ["listen"], report
    finally:
        shutil.rmtree(home, ignore_errors=True)


# Durability --------------------------------------------------------------------------------------------------------


def test_fsync_off(odd: Case) -> None:
    assert odd.cure("fsync_off")["level"] == "error"


def test_full_page_writes_off(odd: Case) -> None:
    assert odd.cure("full_page_writes_off")["level"] == "error"


def test_synchronous_commit_off(odd: Case) -> None:
    assert odd.cure("synchronous_commit_off")["details"] == ["set for the whole server"]


def test_synchronous_commit_off_for_a_role_or_a_database(odd: Case) -> None:
    odd.sql("ALTER SYSTEM SET synchronous_commit = on")
    odd.sql("SELECT pg_reload_conf()")
    name = name_of(odd)
    odd.sql(f'CREATE ROLE "Odd one {name}"')
    odd.sql(f'ALTER ROLE "Odd one {name}" SET synchronous_commit = off')
    odd.sql(f"ALTER ROLE postgres IN DATABASE {name} SET synchronous_commit = off")
    odd.sql(f"ALTER DATABASE {name} SET synchronous_commit = off")
    finding = odd.cure("synchronous_commit_off")
    assert finding["level"] == "warning"
    assert sorted(finding["details"]) == [
        f"set for database {name}",
        f"set for role Odd one {name}",
        f"set for role postgres in database {name}",
    ]
    odd.sql(f'DROP ROLE "Odd one {name}"')


# Vacuum ------------------------------------------------------------------------------------------------------------


def test_autovacuum_off(odd: Case) -> None:
    odd.sql("ALTER SYSTEM SET autovacuum = off")
    odd.sql("ALTER SYSTEM SET track_counts = off")
    odd.sql("SELECT pg_reload_conf()")
    finding = odd.cure("autovacuum_off")
    assert finding["level"] == "error"
    assert finding["what"].startswith("autovacuum and track_counts are off")


def test_autovacuum_off_table(case: Case) -> None:
    case.sql("ALTER TABLE holdfast.inbox SET (autovacuum_enabled = off)")
    finding = case.cure("autovacuum_off_table")
    assert (finding["level"], finding["details"]) == ("error", ["holdfast.inbox"])
    assert case.doctor("--only", "schema", "--strict").exit_code == 0


def test_dead_rows(case: Case) -> None:
    case.sql("ALTER TABLE holdfast.idempotency SET (autovacuum_vacuum_threshold = 1000000)")
    case.sql(
        "INSERT INTO holdfast.idempotency "
        "SELECT 'inbox', n::text, gen_random_uuid(), '', now() FROM generate_series(1, 3000) n"
    )
    case.sql("DELETE FROM holdfast.idempotency")
    finding = case.cure("dead_rows", "--limit", "dead_rows=2500")
    assert finding["level"] == "warning"
    assert finding["details"] == ["holdfast.idempotency: 3,000 dead, 0 live, never vacuumed"]
    assert finding["fix"] == ["holdfast doctor --fix vacuum --limit=dead_rows=2500"]


def test_xid_age(odd: Case) -> None:
    odd.sql("VACUUM (FREEZE)")
    with psycopg.connect(odd.url, autocommit=True) as conn:
        for _ in range(600):
            conn.execute("SELECT pg_current_xact_id()")
    finding = odd.cure("xid_age", "--limit", "xid_age=500")
    assert finding["level"] == "error"
    assert finding["details"][0].startswith("holdfast.archive_00: 6")


# The horizon -------------------------------------------------------------------------------------------------------


def test_horizon_session(case: Case) -> None:
    with transaction(case.url, "SELECT pg_current_xact_id() -- \x1b[31mred") as lunch:
        pid = lunch.info.backend_pid
        finding = case.cure("horizon_session", "--limit", "horizon=0")
        with pytest.raises(psycopg.OperationalError):
            lunch.execute("SELECT 1")
    assert finding["level"] == "warning"
    (line,) = finding["details"]
    assert line.startswith(f"pid {pid} (postgres, lunch), idle in transaction, ")
    assert line.endswith(" s in a transaction: SELECT pg_current_xact_id() -- \\x1b[31mred")
    assert finding["fix"] == [f"holdfast doctor --fix horizon:{pid} --limit=horizon=0"]


def test_every_session_past_the_limit_is_ended_at_once(case: Case) -> None:
    with (
        transaction(case.url, "SELECT pg_current_xact_id()") as one,
        transaction(case.url, "SELECT pg_current_xact_id()") as two,
        psycopg.connect(case.url, autocommit=True) as idle,
    ):
        assert case.doctor("--fix", "horizon", "--yes", "--limit", "horizon=3600").stdout.startswith(
            "horizon "
        )
        result = case.doctor("--fix", "horizon", "--yes", "--limit", "horizon=0")
        assert result.exit_code == 0
        for lunch in (one, two):
            assert f"ended: session {lunch.info.backend_pid}" in result.stdout
        idle.execute("SELECT 1")
    (entry,) = case.sql("SELECT selection, count FROM holdfast.audit")
    assert (entry["selection"]["fix"], entry["count"]) == ("horizon", 2)


def test_only_a_session_that_holds_the_horizon_is_ended(case: Case) -> None:
    """A process id may have a new owner since it was printed. What is not done is not written down either."""

    def left(pid: int, limit: int) -> bool:
        said = case.doctor("--fix", f"horizon:{pid}", "--limit", f"horizon={limit}").stdout
        what = f"left: {pid} is no session of this database in a transaction for {limit} s or more"
        return said.splitlines()[0] == what

    with psycopg.connect(case.url, autocommit=True) as idle:
        assert left(idle.info.backend_pid, 0)
        idle.execute("SELECT 1")
    with transaction(case.url, "SELECT 1") as harmless:  # in a transaction that holds nothing yet
        assert left(harmless.info.backend_pid, 0)
        harmless.execute("SELECT 1")
    elsewhere = psycopg.conninfo.make_conninfo(case.url, dbname="postgres")
    with transaction(elsewhere, "SELECT pg_current_xact_id()") as other:
        assert left(other.info.backend_pid, 0)
        other.execute("SELECT 1")
    with transaction(case.url, "SELECT pg_current_xact_id()") as young:
        assert left(young.info.backend_pid, 300)
        young.execute("SELECT 1")
    assert case.sql("SELECT FROM holdfast.audit") == []


def test_a_fix_names_a_process(case: Case) -> None:
    from typer.testing import CliRunner

    from holdfast.cli import app

    result = CliRunner().invoke(app, ["doctor", "--fix", "horizon:all"], env=case.env)
    assert isinstance(result.exception, ConfigurationError)
    assert "horizon:all names no process" in str(result.exception)


def test_horizon_prepared(odd: Case) -> None:
    odd.sql("BEGIN; DELETE FROM holdfast.progress; PREPARE TRANSACTION 'it''s forgotten'")
    finding = odd.cure("horizon_prepared", "--limit", "horizon=0")
    assert finding["level"] == "error"
    assert finding["details"][0].startswith("it's forgotten of postgres, prepared ")
    assert odd.sql("SELECT FROM pg_prepared_xacts") == []


def test_horizon_slot(odd: Case) -> None:
    name = f"forgotten_{name_of(odd)}"
    odd.sql("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
    with psycopg.connect(odd.url, autocommit=True) as conn:
        for _ in range(60):
            conn.execute("SELECT pg_current_xact_id()")
    finding = odd.cure("horizon_slot", "--limit", "horizon_xids=50")
    assert finding["level"] == "warning"
    assert finding["details"][0].startswith(f"{name} (logical, not in use): ")
    assert "(catalogs only), keeps " in finding["details"][0]
    assert odd.found("horizon_slot") is None


def test_a_slot_that_somebody_reads_from_is_not_dropped(odd: Case) -> None:
    name = f"read_{name_of(odd)}"
    odd.sql("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
    odd.sql("CREATE PUBLICATION nothing")
    follower = psycopg.connect(odd.url, replication="database", autocommit=True)
    try:
        options = "proto_version '1', publication_names 'nothing'"
        follower.pgconn.exec_(f"START_REPLICATION SLOT {name} LOGICAL 0/0 ({options})".encode())
        finding = odd.found("horizon_slot", "--limit", "horizon_xids=0")
        assert finding is not None
        assert f"{name} (logical, in use): " in finding["details"][0]
        assert "pg_drop_replication_slot" not in str(finding)
        assert odd.found("horizon_session", "--limit", "horizon=0", "--limit", "horizon_xids=0") is None
        pid = str(follower.info.backend_pid)
        odd.doctor("--fix", f"horizon:{pid}", "--limit", "horizon=0", "--limit", "horizon_xids=0")
        assert odd.sql("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", [name]) == [
            {"active_pid": int(pid)}
        ]
    finally:
        follower.close()
        wait_until(lambda: not odd.sql("SELECT FROM pg_replication_slots WHERE active"), "it has left")
        odd.sql("SELECT pg_drop_replication_slot(%s)", [name])


# Rights ------------------------------------------------------------------------------------------------------------


def test_a_check_that_a_role_may_not_make_says_so(case: Case) -> None:
    role = f"reader_{name_of(case)}"
    case.sql(f"CREATE ROLE {role} LOGIN")
    try:
        case.sql(f"GRANT USAGE ON SCHEMA holdfast TO {role}")
        case.sql(
            "GRANT SELECT ON holdfast.migrations, holdfast.queues, holdfast.engine, holdfast.archive_slots,"
            f" holdfast.workflow_upkeep TO {role}"
        )
        case.url = psycopg.conninfo.make_conninfo(case.url, user=role)
        report = json.loads(case.doctor("--json").stdout)
        said = {check["name"]: check["not_checked"] for check in report["checks"]}
        assert said["schema"] is None
        assert said["archive"] is None
        assert "permission denied" in said["stranded"]
        assert said["horizon"] == f"sessions of other roles cannot be seen: GRANT pg_read_all_stats TO {role}"
        text = case.doctor("--only", "stranded").stdout
        assert re.match(r"stranded +not checked: ", text)
        assert "permission denied" in text
        assert case.doctor("--only", "stranded").exit_code == 0
        assert case.doctor("--only", "stranded", "--strict").exit_code == 1
    finally:
        case.url = psycopg.conninfo.make_conninfo(case.url, user="postgres")
        case.sql(f"DROP OWNED BY {role}")
        case.sql(f"DROP ROLE {role}")


def test_a_check_that_takes_too_long_is_given_up(case: Case) -> None:
    with transaction(case.url, "LOCK TABLE holdfast.quarantine"):
        report = json.loads(case.doctor("--json", "--only", "quarantine", "--limit", "statement=0.2").stdout)
    assert report["checks"][0]["not_checked"] == (
        "it takes longer than 0.2 s (canceling statement due to statement timeout). Give it more: --limit statement=60"
    )


def test_a_look_cannot_write(kit: Kit) -> None:
    with Probe(kit.database, 5.0) as probe:
        with pytest.raises(DatabaseError, match="read-only transaction"):
            probe.look(audit(Actor("me"), "look", {}, 1))
        assert probe.look(list_audit(AuditFilter(), None, 10)) == ([], None)
        (setting,) = probe.look(settings(["statement_timeout"])).values()
    assert setting == "0"  # nothing of the look stays in the session
