"""The doctor as a whole: its output, its exit code, and that no finding is without a test and a row in the docs."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from tests.doctor.case import Case
from typer.testing import CliRunner

from holdfast import Holdfast, operate, shapes
from holdfast.cli import app as cli
from holdfast.errors import ConfigurationError, SchemaTooNew
from holdfast.operate.doctor.run import FIXES, Diagnosis
from holdfast.operate.doctor.thresholds import Limits, read_limits
from holdfast.operate.operator import Operator
from holdfast.shapes import CHECKS
from holdfast.testing import Kit

HERE = Path(__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"

CODES = [code for check in CHECKS for code in check.codes]


@pytest.mark.versions
def test_a_healthy_database(case: Case) -> None:
    """Every check on every version. Test servers are not durable; nothing else is found there."""
    found = [line.split()[0] for line in case.doctor().stdout.splitlines() if " ok: " in line]
    rest = [word for check in CHECKS if check.name != "durability" for word in ("--only", check.name)]
    assert set(found) >= set(rest[1::2])
    result = case.doctor("--strict", *rest)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "Nothing found."), result.stdout
    report = json.loads(case.doctor("--json", *rest).stdout)
    assert [report[k] for k in ("done", "error", "warning", "info", "not_checked")] == [[], 0, 0, 0, 0]


def test_while_workers_run_nothing_is_found(app: Holdfast, kit: Kit) -> None:
    """What a busy system does all the time is no fault, and looking at it disturbs nobody."""
    seen: list[Diagnosis] = []

    @app.task
    def look(n: int) -> None:
        only = [check.name for check in CHECKS if check.name not in ("durability", "horizon")]
        seen.append(Operator(kit.database, "ann").doctor(only=only, checks=CHECKS))

    for n in range(3):
        look.enqueue(n=n)
    kit.run_worker()
    assert [row["status"] for row in kit.jobs(look)] == ["completed"] * 3
    assert [found.is_fine(strict=True) for found in seen] == [True] * 3, [f.findings for f in seen]


def test_exit_codes(case: Case) -> None:
    case.sql("ALTER TABLE holdfast.inbox SET (fillfactor = 90)")
    assert case.doctor("--only", "schema").exit_code == 0  # a warning
    assert case.doctor("--only", "schema", "--strict").exit_code == 1
    case.sql("DROP VIEW holdfast.keys")
    assert case.doctor("--only", "schema").exit_code == 1


def test_what_was_done_before_an_error_is_told_and_written_down(case: Case) -> None:
    old, older = (f"holdfast.archive_slot(now() - interval '{days} days')" for days in (12, 13))
    case.sql(
        f"UPDATE holdfast.archive_slots SET day = current_date - 12 WHERE slot = {old};"
        f"UPDATE holdfast.archive_slots SET day = current_date - 13 WHERE slot = {older};"
    )
    ((slot,),) = (row.values() for row in case.sql(f"SELECT {old} AS slot"))
    case.sql(
        f"""
        CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''kept''; END';
        CREATE TRIGGER refuse BEFORE TRUNCATE ON holdfast.archive_{slot:02} EXECUTE FUNCTION public.refuse();
        """
    )
    result = CliRunner().invoke(cli, ["doctor", "--fix", "archive"], env=case.env)
    assert "kept" in str(result.exception)
    (line,) = result.stdout.splitlines()
    assert line.startswith("emptied: slot ")
    (entry,) = case.sql("SELECT selection, count FROM holdfast.audit")
    assert (entry["selection"]["done"], entry["count"]) == ([line], 1)


def test_looking_changes_nothing(case: Case) -> None:
    count = "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) AS n FROM pg_stat_all_tables WHERE schemaname = 'holdfast'"
    flush = "SELECT pg_stat_force_next_flush()"  # or the counters of this session come later
    case.sql(
        f"DROP VIEW holdfast.keys; DROP INDEX holdfast.inbox_claim; SELECT holdfast.enqueue('work'); {flush}"
    )
    before = case.sql(count)
    assert case.doctor().exit_code == 1
    assert case.sql(count) == before
    assert case.sql("SELECT to_regclass('holdfast.keys') AS keys") == [{"keys": None}]
    assert case.sql("SELECT FROM holdfast.audit") == []


def refused(case: Case, *words: str) -> str:
    result = CliRunner().invoke(cli, ["doctor", *words], env=case.env)
    assert isinstance(result.exception, ConfigurationError), result.exception
    return str(result.exception)


def test_mistakes(case: Case) -> None:
    assert refused(case, "--only", "everything").startswith(
        "there is no check 'everything' (known: migrations, schema,"
    )
    assert refused(case, "--fix", "fsync").startswith("there is no fix 'fsync' (known: vacuum, freeze,")
    assert refused(case, "--fix", "vacuum:1").startswith("there is no fix 'vacuum:1'")
    assert refused(case, "--fix", "vacuum", "--only", "vacuum").startswith(
        "say either what to fix or what to check"
    )
    assert refused(case, "--limit", "patience=3").startswith(
        "there is no limit 'patience' (known: statement,"
    )
    assert refused(case, "--limit", "skew=long") == "limit skew must be a number of 0 or more, not 'long'"
    assert refused(case, "--limit", "skew=-1") == "limit skew must be a number of 0 or more, not '-1'"
    assert refused(case, "--limit", "skew=inf") == "limit skew must be a number of 0 or more, not 'inf'"


def test_a_newer_schema_is_not_examined(case: Case) -> None:
    case.sql("INSERT INTO holdfast.migrations VALUES (9999, 'from_the_future')")
    for words in (["doctor"], ["doctor", "--fix", "vacuum"]):
        assert isinstance(CliRunner().invoke(cli, words, env=case.env).exception, SchemaTooNew)


def test_a_fix_wants_the_schema(case: Case) -> None:
    case.sql("DELETE FROM holdfast.migrations")
    result = CliRunner().invoke(cli, ["doctor", "--fix", "vacuum"], env=case.env)
    assert "holdfast migrate up" in str(result.exception)


def test_limits_that_were_given_go_with_the_command() -> None:
    assert read_limits(["skew=2", "dead=5"]).changed() == {"skew": 2.0, "dead": 5.0}
    assert Limits().changed() == {}


# Nothing without a test and a row ----------------------------------------------------------------------------------


def test_every_finding_has_a_test_that_runs_its_command() -> None:
    text = "\n".join(file.read_text(encoding="utf-8") for file in HERE.glob("test_*.py"))
    cured = set(re.findall(r'\.cure\(\s*"(\w+)"', text))
    # The clock of the machine that runs the tests is not theirs to set. Drift, a broker that is away, messages that do not
    # fit and what the code says are for a person.
    by_name = {"clock_skew", "schema_drift", "storage_drift"}
    by_name |= {"broken_source", "parked_messages", "forgetful_source"}
    by_name |= {"torn_run"}  # rows that somebody changed: only a backup has what they were
    # Whoever runs the endpoint or the destination, or has the key.
    by_name |= {"unusual_backlog"}
    by_name |= {"failing_endpoint", "failing_keys", "unreadable_secrets"}
    for code in by_name:
        assert f"def test_{code}(" in text
    assert cured | by_name == set(CODES)
    assert not cured & by_name


def test_every_finding_that_is_made_is_declared() -> None:
    folders = (Path(operate.__path__[0], "doctor").glob("*.py"), Path(shapes.__path__[0]).glob("*/checks.py"))
    text = "\n".join(file.read_text(encoding="utf-8") for files in folders for file in files)
    made = set(re.findall(r'Finding\(\s*"(\w+)"', text))
    made |= {
        "fsync_off",
        "full_page_writes_off",
        "paused_queue",
        "paused_task",
    }  # named by what is off or paused
    assert made == set(CODES)
    assert len(CODES) == len(set(CODES))


def test_the_page_has_a_row_for_every_finding_check_limit_and_fix() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (error|warning|info) \| `(\w+)` \|", text, re.MULTILINE)
    assert [(code, check) for code, _, check in rows] == [(code, c.name) for c in CHECKS for code in c.codes]
    limits = dict(re.findall(r"^\| `(\w+)` \| ([\d,.]+) \|", text, re.MULTILINE))
    assert {k: float(v.replace(",", "")) for k, v in limits.items()} == {
        f.name: f.default for f in fields(Limits)
    }
    fixes = re.findall(r"^\| `--fix (\w+)` \|", text, re.MULTILINE)
    assert fixes == list(FIXES)


def test_the_page_says_the_level_of_every_finding() -> None:
    text = PAGE.read_text(encoding="utf-8")
    said = dict(re.findall(r"^\| `(\w+)` \| (error|warning|info) \|", text, re.MULTILINE))
    folder = Path(operate.__path__[0], "doctor")
    source = "\n".join(file.read_text(encoding="utf-8") for file in folder.glob("*.py"))
    made: dict[str, list[str]] = {}
    for code, level in re.findall(r'Finding\(\s*f?"([\w{}]+)",\s*"(error|warning|info)"', source):
        made.setdefault(code, []).append(level)
    for code, levels in made.items():
        names = {
            "{name}_off": ("fsync_off", "full_page_writes_off"),
            "paused_{kind}": ("paused_queue", "paused_task"),
        }
        for name in names.get(code, (code,)):
            assert said[name] in levels, name


def test_the_page_has_a_row_for_every_reason_of_explain() -> None:
    text = PAGE.read_text(encoding="utf-8").split("## holdfast explain")[1]
    cells = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", text, re.MULTILINE)
    rows = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    folder = Path(operate.__path__[0])
    places = [*(folder / name for name in ("explain.py", "limit_reasons.py", "affinity_reason.py"))]
    places += (folder.parent / "shapes").glob("*/explaining.py")
    source = "".join(place.read_text(encoding="utf-8") for place in places)
    said = set(re.findall(r'Reason\(\s*"(\w+)"', source)) | set(re.findall(r'return "(\w+)", said', source))
    ended = (
        {f"run_{state}" for state in ("cancelled", "terminated")} if 'f"run_{run.state}"' in source else set()
    )
    assert sorted(rows) == sorted(said | ended | {"no_such_job"})
