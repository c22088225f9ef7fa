"""docs/from-the-articles.md: every identifier of the articles has a row, and what a row names is there."""

import re
from pathlib import Path

import pytest
from scripts import article_identifiers, schema_picture
from tests.surface.test_runbook_doc import parse

from holdfast.testing import Kit

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "from-the-articles.md").read_text(encoding="utf-8")
IDENTIFIERS = (ROOT / "tests" / "articles" / "identifiers.txt").read_text(encoding="utf-8").split()
STATEMENTS = (ROOT / "tests" / "articles" / "statements.txt").read_text(encoding="utf-8").splitlines()
TABLES = re.findall(r"<!-- identifiers -->\n(.*?)<!-- end identifiers -->", TEXT, re.DOTALL)
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for table in TABLES
    for line in table.splitlines()[2:]
]
LADDER = [
    "Durable row + claim loop",
    "Recovery + idempotency",
    "Multiple workers",
    "Stable ownership",
    "Production controls",
    "Boundaries and transport",
    "Durable workflows",
]
PATTERNS = [
    "Message Channel",
    "Competing Consumers",
    "Partitioned consumption",
    "Exclusive work ownership",
    "Lease / timeout ownership",
    "Idempotent Receiver",
    "Dead Letter Channel",
    "Transactional Outbox",
]
CONTROLS = [
    "Lease renewal",
    "Fencing token",
    "Graceful drain",
    "Worker-coordinated housekeeping",
    "Shard that partition key",
    "LISTEN/NOTIFY plus polling fallback",
    "Producer idempotency",
    "Handler idempotency",
]
CONTRACT = [
    "Worker registry",
    "Inbox table",
    "Claim query",
    "Lease cleanup",
    "Support queries",
    "Guarantee tests",
]


def named_there() -> list[str]:
    return [name for row in ROWS for name in re.findall(r"`([^`]+)`", row[0])]


def test_every_identifier_of_the_articles_has_a_row() -> None:
    assert [name for name in IDENTIFIERS if name not in named_there()] == []


def test_a_row_says_where_it_is_and_what_differs() -> None:
    assert len(IDENTIFIERS) >= 60
    for row in ROWS:
        assert len(row) == 3, row
        assert all(cell.strip("| ") for cell in row), row


def test_every_statement_of_the_articles_has_a_row_that_says_what_differs() -> None:
    (table,) = re.findall(r"<!-- statements -->\n(.*?)<!-- end statements -->", TEXT, re.DOTALL)
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row[0])]
    assert sorted(named) == sorted(STATEMENTS)
    assert len(STATEMENTS) > 20
    for row in rows:
        assert len(row) == 3, row
        assert all(cell.strip("| ") for cell in row), row


def test_the_queries_that_the_page_names_are_in_their_files() -> None:
    said = re.findall(
        r"`(\w+)`(?: after an error| after a lost worker)? in \[\w+\.sql\]\(\.\./([^)]+)\)", TEXT
    )
    assert len(said) > 10
    for name, file in said:
        assert f"-- name: {name}\n" in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no {name}"


def test_no_row_is_of_a_name_that_the_articles_do_not_have() -> None:
    assert sorted(set(named_there()) - set(IDENTIFIERS)) == []


@pytest.mark.parametrize(
    "words", [LADDER, PATTERNS, CONTROLS, CONTRACT], ids=["ladder", "patterns", "controls", "contract"]
)
def test_every_step_pattern_and_control_has_a_row_with_a_command(words: list[str]) -> None:
    for word in words:
        (row,) = (line for line in TEXT.splitlines() if line.startswith("|") and f"| {word} " in line)
        assert re.search("`(holdfast|make) ", row), f"{word} has no command"


@pytest.mark.parametrize(
    ("title", "rows"), [("Use this when", 4), ("Where PostgreSQL stops being enough", 5)]
)
def test_every_condition_has_a_command(title: str, rows: int) -> None:
    section = TEXT.split(f"## {title}\n")[1].split("\n## ")[0]
    found = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert len(found) == rows
    assert [line for line in found if not re.search(r"\| `holdfast [^|]+` \|$", line)] == []


def test_every_guarantee_of_the_articles_has_its_test() -> None:
    (table,) = re.findall(r"<!-- guarantees -->\n(.*?)<!-- end guarantees -->", TEXT, re.DOTALL)
    rows = table.splitlines()[2:]
    assert len(rows) == 5
    tests = (ROOT / "tests" / "sql" / "test_guarantees.py").read_text(encoding="utf-8")
    for row in rows:
        names = re.findall(r"`(test_\w+)`", row)
        assert names, row
        assert [name for name in names if f"def {name}(" not in tests] == []


def test_every_command_is_one() -> None:
    lines = re.findall(r"`(holdfast [^`\n]+)`", TEXT)
    assert len(lines) > 20
    for line in lines:
        parse(line.replace("QUEUE", "orders").replace("RUN", "ID"))


def test_every_table_column_and_function_is_in_the_database(kit: Kit) -> None:
    there = {
        str(row["name"])
        for row in kit.sql(
            "SELECT c.relname AS name FROM pg_class c WHERE c.relnamespace = 'holdfast'::regnamespace"
            " UNION SELECT c.relname || '.' || a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
            " WHERE c.relnamespace = 'holdfast'::regnamespace AND a.attnum > 0"
            " UNION SELECT p.proname || '()' FROM pg_proc p WHERE p.pronamespace = 'holdfast'::regnamespace"
        )
    }
    names = set(re.findall(r"`holdfast\.([a-z0-9_.]+(?:\(\))?)`", TEXT)) - {"queue_NAME"}
    assert len(names) > 30
    assert sorted(names - there) == []


def test_the_drawing_of_the_schema_is_current(kit: Kit) -> None:
    with kit.connect() as conn:
        assert schema_picture.picture(conn) == schema_picture.FILE.read_text(encoding="utf-8"), (
            "docs/schema.svg is not what the schema is: python scripts/schema_picture.py"
        )


def test_identifiers_are_found_in_tables_statements_functions_and_strings() -> None:
    article = """
    The queue is called thing_queue in prose.

CREATE TABLE parcels (
  parcel   UUID PRIMARY KEY,           -- a word of a comment
  state    TEXT NOT NULL DEFAULT 'waiting'
);

UPDATE parcels SET state = 'sent' WHERE parcel = $1 AND weight < 10;

const done = await db.shipParcel(`x`);
await db.query(`DELETE FROM crates WHERE owner = 'nobody'`);
class ParcelLost() {}
columnthing_queue
"""
    assert article_identifiers.heads([article]) == [
        "CREATE TABLE parcels",
        "UPDATE parcels SET state = 'sent'",
        "DELETE FROM crates",
    ]
    assert article_identifiers.identifiers([article]) == [
        "crates", "nobody", "owner", "parcel", "ParcelLost", "parcels", "sent", "shipParcel", "state", "thing_queue",
        "waiting", "weight",
    ]  # fmt: skip
