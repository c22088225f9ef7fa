"""Pages that are made from the code and from a migrated database. Each is Markdown, and rendered as any other page."""

import inspect
import re
import sys
import typing
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import psycopg
import typer
from psycopg.rows import tuple_row

import holdfast
from holdfast import Settings, errors
from holdfast.cli import app

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from scripts.docs import describe  # noqa: E402

FUNCTIONS = """
SELECT p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), p.prosecdef
FROM pg_proc p WHERE p.pronamespace = 'holdfast'::regnamespace ORDER BY p.proname, p.oid
"""
RELATIONS = """
SELECT c.relname, c.relkind IN ('r', 'p'),
       array_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod) ORDER BY a.attnum)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = 'holdfast'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition
GROUP BY c.relname, c.relkind ORDER BY c.relname
"""


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def python_page() -> str:
    """Every public name: its docstring, and what it has."""
    parts = [
        "# Python reference",
        "",
        "Every public name, from its docstring. [api.md](api.md) says what is kept stable.",
        "",
    ]
    for name in sorted(holdfast.__all__, key=str.lower):
        value = getattr(holdfast, name)
        parts += [f"## {name}", ""]
        text = docstring(value)
        parts += [text, ""] if text else []
        shown = describe(name, value)
        parts += ["```text", *shown, "```", ""]
        for member, words in members(value):
            parts += [f"**`{member}`**: {words}", ""]
    return "\n".join(parts)


def docstring(value: Any) -> str:
    """Its own, in Markdown; not what it has from `object`, a protocol or a dict."""
    own = vars(value).get("__doc__") if inspect.isclass(value) else getattr(value, "__doc__", None)
    if not own or (inspect.isclass(value) and own.startswith(f"{value.__name__}(")):
        return ""
    return inspect.cleandoc(own).replace("<", "&lt;")


def members(value: Any) -> Iterator[tuple[str, str]]:
    if not inspect.isclass(value):
        return
    for name, found in inspect.getmembers(value):
        if name.startswith("_") or not (inspect.isfunction(found) or isinstance(found, property)):
            continue
        text = inspect.cleandoc(found.__doc__ or "")
        if text and (getattr(found, "__module__", None) or "holdfast").startswith("holdfast"):
            yield name, cell(text.split("\n\n")[0]).replace("<", "&lt;")


def commands() -> Iterator[tuple[str, Any]]:
    """Each command by its whole name."""

    def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        parts = getattr(command, "commands", None)
        if parts is None or command.invoke_without_command:
            yield name.strip(), command
        for word, part in sorted((parts or {}).items()):
            yield from walk(f"{name} {word}", part)

    yield from walk("", typer.main.get_command(app))


def commands_page() -> str:
    parts = [
        "# Commands, each with its options",
        "",
        "From `--help`. In groups, with exit codes: [cli.md](cli.md).",
        "",
    ]
    for name, command in commands():
        parts += [f"## holdfast {name}", "", inspect.cleandoc(command.help or "").replace("<", "&lt;"), ""]
        rows = [
            f"| `{' '.join([*param.opts, *param.secondary_opts])}` | {cell(param.help or '').replace('<', '&lt;')} |"
            for param in command.params
            if not getattr(param, "hidden", False) and param.name != "help"
        ]
        parts += ["| option or argument | meaning |", "|---|---|", *rows, ""] if rows else []
    return "\n".join(parts)


def settings_page() -> str:
    """From the class, with the words of configuration.md."""
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    hints = typing.get_type_hints(Settings)
    parts = ["# Settings by name", "", "How they are read: [configuration.md](configuration.md).", ""]
    parts += ["| setting | variable | type | default | meaning |", "|---|---|---|---|---|"]
    for field in fields(Settings):
        found = re.search(rf"^\| `{field.name}` \|[^|]*\|(.*)\|$", text, re.MULTILINE)
        kind = str(getattr(hints[field.name], "__name__", hints[field.name])).replace("|", "\\|")
        words = found[1].strip() if found else ""
        default = "" if field.default is None else f"`{field.default}`"
        parts.append(f"| `{field.name}` | `HOLDFAST_{field.name.upper()}` | `{kind}` | {default} | {words} |")
    return "\n".join([*parts, ""])


def sql_comments() -> dict[str, str]:
    """What stands above each object in the files that make the schema."""
    found: dict[str, str] = {}
    source = ROOT / "src" / "holdfast"
    for file in (source / "sql" / "schema.sql", *sorted((source / "shapes").glob("*/schema.sql"))):
        above: list[str] = []
        for line in file.read_text(encoding="utf-8").splitlines():
            made = re.match(r"\s*CREATE (?:OR REPLACE )?(?:TABLE|VIEW|FUNCTION) holdfast\.(\w+)", line)
            if made and above:
                found.setdefault(made[1], " ".join(above))
            comment = re.match(r"-- ?(.*?)(?: -{10,})?$", line)
            above = [*above, comment[1]] if comment else []
    return found


def sql_page(conn: psycopg.Connection[Any]) -> str:
    words = sql_comments()
    cursor = conn.cursor(row_factory=tuple_row)
    story = "[schema.sql](../src/holdfast/sql/schema.sql)"
    parts = [
        "# SQL reference",
        "",
        f"Made from a migrated database. The story of the tables is at the top of {story}.",
    ]
    parts += ["Rights: [roles.md](roles.md).", "", "![The tables](schema.svg)", ""]
    parts += ["## Functions", ""]
    for name, arguments, result, definer in cursor.execute(FUNCTIONS).fetchall():
        parts += [f"### {name}()", "", words.get(name, "").replace("<", "&lt;"), ""]
        parts += ["```sql", f"holdfast.{name}({arguments}) RETURNS {result}", "```", ""]
        parts += ["With the owner's rights.", ""] if definer else []
    tables: dict[bool, list[str]] = {True: ["## Tables", ""], False: ["## Views", ""]}
    for name, table, columns in cursor.execute(RELATIONS).fetchall():
        lines = [
            f"### {name}",
            "",
            words.get(name, "").replace("<", "&lt;"),
            "",
            "```text",
            *columns,
            "```",
            "",
        ]
        tables[bool(table)] += lines
    return "\n".join([*parts, *tables[False], *tables[True]])


def public_errors() -> list[type[BaseException]]:
    """Every error that our code raises on purpose and a caller can catch."""
    found = {value for name in holdfast.__all__ if _is_error(value := getattr(holdfast, name))}
    found |= {value for value in vars(errors).values() if _is_error(value)}
    return sorted(found, key=lambda error: error.__name__)


def _is_error(value: object) -> typing.TypeGuard[type[BaseException]]:
    return (
        inspect.isclass(value)
        and issubclass(value, BaseException)
        and value.__module__.startswith("holdfast")
    )


def errors_page() -> str:
    parts = ["# Errors", "", "What each means and what to do is in its docstring and in its text.", ""]
    for error in public_errors():
        bases = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
        parts += [f"## {error.__name__}", "", docstring(error), "", f"A kind of {bases}.", ""]
    return "\n".join(parts)


def metrics_page() -> str:
    """The rows of monitoring.md, by name."""
    text = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    rows = sorted(re.findall(r"^\| `holdfast_\w+` \|.*$", text, re.MULTILINE))
    head = [
        "# Metrics",
        "",
        "By name. How to scrape them, alerts and dashboards: [monitoring.md](monitoring.md).",
        "",
    ]
    return "\n".join([*head, "| metric | kind | labels | meaning |", "|---|---|---|---|", *rows, ""])


def reference(conn: psycopg.Connection[Any]) -> dict[str, str]:
    """Each page by its name."""
    return {
        "reference-python": python_page(),
        "reference-commands": commands_page(),
        "reference-settings": settings_page(),
        "reference-sql": sql_page(conn),
        "reference-errors": errors_page(),
        "reference-metrics": metrics_page(),
    }
