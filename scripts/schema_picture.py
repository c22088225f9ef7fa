"""Draw docs/schema.svg from a migrated database: each table with its columns, by the file that makes it. `--check`: compare.

The schema has no foreign keys; a column that holds the key of another table says which, by its name (LINKS).
"""

import re
import shutil
import sys
import tempfile
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import tuple_row

from holdfast.db import migrate
from holdfast.db.embedded import EmbeddedOptions, EmbeddedServer

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "docs" / "schema.svg"
SOURCE = ROOT / "src" / "holdfast"
LINKS = {
    "queue": "queues", "into_queue": "queues", "job_id": "work", "parent_id": "work", "claim_token": "claims",
    "worker": "workers", "group_id": "groups", "subscription": "subscriptions", "endpoint_id": "webhook_endpoints",
    "endpoint": "webhook_endpoints", "run_id": "workflow_runs", "run": "workflow_runs", "operation": "operations",
}  # fmt: skip
FIRST = (
    "work",
    "claims",
    "workers",
    "queues",
    "archive",
    "dead_letters",
    "errors",
    "idempotency",
)  # the rest by name
WIDTH, COLUMNS, GAP, LINE, HEAD = 268, 4, 14, 14, 22
STYLE = """
text { font: 11px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2937 }
.group { font: 600 15px system-ui, sans-serif } .table { font-weight: 700; fill: #fff } .type { fill: #6b7280 }
.link { fill: #0f766e } rect.box { fill: #fff; stroke: #cbd5e1 } rect.head { fill: #0f766e } .ground { fill: #f8fafc }
@media (prefers-color-scheme: dark) {
text { fill: #e5e7eb } .type { fill: #9ca3af } .link { fill: #5eead4 } rect.box { fill: #111827; stroke: #374151 }
.ground { fill: #0b1120 } .table { fill: #fff } }
"""

QUERY = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
       a.attnum = ANY (coalesce((SELECT i.indkey::int2[] FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary), '{}'))
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE n.nspname = 'holdfast' AND c.relkind IN ('r', 'p') AND NOT c.relispartition
ORDER BY c.relname, a.attnum
"""
SHORT = {"timestamp with time zone": "timestamptz", "double precision": "float8", "integer": "int"}


class Column(NamedTuple):
    name: str
    type: str
    key: bool


def groups() -> dict[str, str]:
    """Which part of the schema makes each table: the engine, or a shape."""
    made: dict[str, str] = {}
    for part, file in [
        ("jobs and workers", SOURCE / "sql" / "schema.sql"),
        *((path.parent.name, path) for path in sorted((SOURCE / "shapes").glob("*/schema.sql"))),
    ]:
        for table in re.findall(
            r"^CREATE TABLE holdfast\.(\w+)", file.read_text(encoding="utf-8"), re.MULTILINE
        ):
            made.setdefault(table, part)
    return made


def tables(conn: psycopg.Connection[Any]) -> dict[str, list[Column]]:
    found: dict[str, list[Column]] = {}
    for table, column, type_, key in conn.cursor(row_factory=tuple_row).execute(QUERY):
        plain = str(type_).removesuffix("[]")
        text = SHORT.get(plain, plain) + str(type_)[len(plain) :]
        found.setdefault(table, []).append(Column(column, text, key))
    return found


def box(name: str, columns: list[Column], x: int, y: int) -> Iterable[str]:
    height = HEAD + LINE * len(columns) + 6
    yield f'<rect class="box" x="{x}" y="{y}" width="{WIDTH}" height="{height}" rx="4"/>'
    yield f'<rect class="head" x="{x}" y="{y}" width="{WIDTH}" height="{HEAD - 3}" rx="4"/>'
    yield f'<text class="table" x="{x + 8}" y="{y + 14}">{escape(name)}</text>'
    for n, column in enumerate(columns):
        line = y + HEAD + LINE * n + 9
        link = LINKS.get(column.name)
        mark = "• " if column.key else "  "
        yield f'<text x="{x + 6}" y="{line}" xml:space="preserve">{mark}{escape(column.name)}</text>'
        shown = f'<tspan class="link">→ {link}</tspan>' if link and link != name else escape(column.type)
        yield f'<text class="type" x="{x + WIDTH - 8}" y="{line}" text-anchor="end">{shown}</text>'


def picture(conn: psycopg.Connection[Any]) -> str:
    """The SVG. The shortest column of boxes gets the next table, so that nothing but the schema decides the drawing."""
    by_group: dict[str, list[str]] = {}
    part_of, found = groups(), tables(conn)
    for table in found:
        by_group.setdefault(part_of[table], []).append(table)
    parts: list[str] = []
    top = 10
    for group in [
        "jobs and workers",
        *sorted(part for part in by_group if part != "jobs and workers"),
    ]:
        parts.append(f'<text class="group" x="{GAP}" y="{top + 16}">{escape(group)}</text>')
        bottoms = [top + 26] * COLUMNS
        for table in sorted(
            by_group[group],
            key=lambda name: (name not in FIRST, FIRST.index(name) if name in FIRST else 0, name),
        ):
            column = bottoms.index(min(bottoms))
            parts += box(table, found[table], GAP + column * (WIDTH + GAP), bottoms[column])
            bottoms[column] += HEAD + LINE * len(found[table]) + 6 + GAP
        top = max(bottoms) + 10
    wide = GAP + COLUMNS * (WIDTH + GAP)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {top}" width="{wide}" height="{top}" role="img">'
    words = "The tables of the schema holdfast. A dot: of the primary key. An arrow: the table that a column leads to."
    title = f"<title>{words}</title>"
    ground = f'<rect class="ground" width="{wide}" height="{top}"/>'
    return "\n".join([head, title, f"<style>{STYLE}</style>", ground, *parts, "</svg>"]) + "\n"


def drawn() -> str:
    home = Path(tempfile.mkdtemp(prefix="hf-", dir="/tmp"))
    home.chmod(0o755)  # the server of a root process runs as somebody else
    try:
        with EmbeddedServer.acquire(home / "pg", EmbeddedOptions(durable=False)) as server:
            server.ensure_database()
            migrate.up(server.dsn())
            with psycopg.connect(server.dsn()) as conn:
                return picture(conn)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def main() -> int:
    text = drawn()
    if "--check" in sys.argv:
        same = FILE.read_text(encoding="utf-8") == text
        print(f"{FILE.name} is current" if same else f"{FILE.name} is not what the schema is: make docs")
        return 0 if same else 1
    FILE.write_text(text, encoding="utf-8")
    print(f"wrote {FILE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
