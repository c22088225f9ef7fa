"""The way to the server: each fault made, found, mended by the printed command, and gone."""

import asyncio
from pathlib import Path

import psycopg
import pytest
from tests.doctor.bouncer import bouncer
from tests.doctor.case import Case

from holdfast.cli.advice import Shell
from holdfast.db.database import Database
from holdfast.model.clock import Clock
from holdfast.operate.operator import Operator
from holdfast.settings import Settings
from holdfast.testing import Kit

WORKER = """
INSERT INTO holdfast.workers (id, host, pid, last_seen_at, started_at, queues, tasks, concurrency, release)
VALUES (%s, 'host', 1, now() + interval '1 hour', now(), '{inbox}', '{}', %s, 'test')
"""


@pytest.mark.usefixtures("pgbouncer")
def test_listen(case: Case) -> None:
    """Behind a pooler that shares its connections nobody hears; with a direct address for LISTEN one does."""
    with bouncer(case.url, "transaction") as pooled:
        case.url = pooled
        finding = case.cure("listen", "--limit", "listen=0.3")
    assert finding["level"] == "warning"
    assert "did not come back within 0.3 s" in finding["what"]
    assert finding["fix"][0].startswith("export HOLDFAST_LISTEN_URL='postgresql://postgres@/holdfast_test_")


def test_listening_somewhere_else(case: Case) -> None:
    """An address for LISTEN that leads to another database hears nothing of this one."""
    case.listen_url = psycopg.conninfo.make_conninfo(case.url, dbname="postgres")
    finding = case.cure("listen", "--limit", "listen=0.3")
    assert "LISTEN does not work at listen_url" in finding["what"]


def test_who_does_not_want_to_be_woken_needs_no_listen(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.listen_url = psycopg.conninfo.make_conninfo(case.url, dbname="postgres")
    monkeypatch.setenv("HOLDFAST_NOTIFY", "off")
    assert case.found("listen", "--limit", "listen=0.3") is None


@pytest.mark.usefixtures("pgbouncer")
def test_pooler_shared(case: Case) -> None:
    with bouncer(case.url, "transaction") as pooled:
        case.url = pooled
        text = case.doctor("--only", "pooler", "--only", "schema", "--only", "plans").stdout
        assert text.count("ok: ") == 2  # the other checks work there too
        finding = case.cure("pooler_shared")
        assert case.url != pooled
    assert finding["level"] == "warning"
    assert finding["otherwise"] == ["pool_mode = session   (in pgbouncer.ini, for this database)"]


@pytest.mark.usefixtures("pgbouncer")
def test_pooler_session(case: Case) -> None:
    """What the other way out gives: one connection for each session, where LISTEN works."""
    with bouncer(case.url, "session") as pooled:
        case.url = pooled
        assert case.found("pooler_shared") is None
        assert case.found("listen") is None
        assert case.cure("pooler_session")["level"] == "info"


def test_clock_skew(kit: Kit) -> None:
    """Nobody sets a machine's clock in a test: the movable one stands for it, and is put right in place of the command."""
    kit.clock.advance(5)
    (finding,) = Operator(kit.database, "ann").doctor(only=["clock_skew"]).findings
    assert (finding.level, Shell().lines(finding.fix)) == ("warning", ["timedatectl set-ntp true"])
    assert "is 5.0 s ahead of the server's" in finding.what
    right = Database(kit.url, Settings(), Clock())
    (check,) = Operator(right, "ann").doctor(only=["clock_skew"]).checks
    assert (check.findings, check.not_checked) == ([], None)
    right.close()


def test_connections_of_the_server(odd: Case, odd_server: object) -> None:
    odd.owner = Path(str(psycopg.conninfo.conninfo_to_dict(odd.url)["host"]))
    odd.sql(WORKER, ["one", 30])
    assert odd.found("connections") is not None
    odd.sql("DELETE FROM holdfast.workers")
    assert odd.found("connections") is None
    odd.sql(WORKER, ["one", 30])
    finding = odd.cure("connections")
    assert finding["level"] == "warning"
    assert finding["what"].startswith("1 worker may open 41 connections, and the server has ")
    assert finding["fix"][1].startswith("pg_ctl restart -D ")


def test_connections_of_a_database_or_a_role(case: Case) -> None:
    (row,) = case.sql("SELECT current_database() AS name")
    role = f"limited_{row['name']}"
    case.sql(WORKER, ["one", 10])
    case.sql(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 15")
    case.sql(f"ALTER DATABASE {row['name']} CONNECTION LIMIT 12")
    case.sql(f"ALTER DATABASE {row['name']} OWNER TO {role}")
    case.sql(f"GRANT USAGE ON SCHEMA holdfast TO {role}")
    case.sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO {role}")
    mine = case.url
    try:
        case.url = psycopg.conninfo.make_conninfo(mine, user=role)
        report = case.doctor("--only", "connections").stdout
        assert "1 worker may open 21 connections, and the database has 12 for them" in report
        assert "1 worker may open 21 connections, and the role has 15 for them" in report
        fixes = [line.split("fix: ")[1] for line in report.splitlines() if "fix: " in line]
        case.url = mine  # a role may not raise its own limit
        for line in fixes:
            case.run(line)
        case.url = psycopg.conninfo.make_conninfo(mine, user=role)
        assert case.found("connections") is None
    finally:
        case.url = mine
        case.sql(f"ALTER DATABASE {row['name']} OWNER TO postgres")
        case.sql(f"DROP OWNED BY {role}")
        case.sql(f"DROP ROLE {role}")


async def test_the_doctor_may_be_called_in_a_running_loop(kit: Kit) -> None:
    found = await asyncio.to_thread(Operator(kit.database, "ann").doctor, only=["listen", "pooler"])
    assert found.is_fine(strict=True)
    assert Operator(kit.database, "ann").doctor(only=["listen"]).is_fine(strict=True)
