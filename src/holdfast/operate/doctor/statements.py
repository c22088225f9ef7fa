"""SQL that a finding about the schema proposes. It is for a person to read and run: the doctor changes no schema."""

import re

from ...store import doctor as store
from ...store.catalog import Difference, Key, QueueTable

_WORD = re.compile(r"[a-z_][a-z0-9_]*")


def ident(name: str) -> str:
    return name if _WORD.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _table(key: Key) -> str:
    return f"holdfast.{ident(key.of)}"


def build_index(d: Difference) -> list[str]:
    """An index that is missing, or is on other columns. The parent of all archive slots includes those of single slots."""
    assert d.expected is not None
    table, name, expected = _table(d.key), ident(d.key.name), d.expected
    unique = "UNIQUE " if expected["unique"] else ""
    build = "INDEX" if d.key.of == "archive" else "INDEX CONCURRENTLY"
    statements = [f"CREATE {unique}{build} {name} ON {table} USING {expected['definition']}"]
    if expected["primary"]:
        statements.append(f"ALTER TABLE {table} ADD CONSTRAINT {name} PRIMARY KEY USING INDEX {name}")
    if d.found is not None:
        statements.insert(0, _drop_index(d))
    return statements


def _drop_index(d: Difference) -> str:
    if d.found and d.found["primary"]:
        return f"ALTER TABLE {_table(d.key)} DROP CONSTRAINT {ident(d.key.name)}"
    return f"DROP INDEX {'' if d.key.of == 'archive' else 'CONCURRENTLY '}holdfast.{ident(d.key.name)}"


def revive_index(key: Key, *, ours: bool) -> str:
    """An invalid one: rebuilt if this release makes it, dropped if a failed build left it."""
    index = f"holdfast.{ident(key.name)}"
    if key.of == "archive":
        return f"DROP INDEX {index}"  # then it is missing
    return f"{'REINDEX' if ours else 'DROP'} INDEX CONCURRENTLY {index}"


def drop_extra(d: Difference) -> str:
    table, name = _table(d.key), ident(d.key.name)
    match d.key.kind:
        case "trigger":
            return f"DROP TRIGGER {name} ON {table}"
        case "constraint":
            return f"ALTER TABLE {table} DROP CONSTRAINT {name}"
        case "security":
            return f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY"
        case "function":
            return f"DROP ROUTINE {table}{d.key.name}"
        case "column":  # its rows stay
            return f"ALTER TABLE {table} ALTER COLUMN {name} DROP NOT NULL"
    return f"DROP INDEX CONCURRENTLY holdfast.{name}"


def drop_column(d: Difference) -> str:
    return f"ALTER TABLE {_table(d.key)} DROP COLUMN {ident(d.key.name)}"


def attach_queue(queue: QueueTable) -> str:
    """Its table exists and is no partition of `work`."""
    table, name = f"holdfast.{ident(queue.table)}", literal(queue.queue or "")
    return f"ALTER TABLE holdfast.work ATTACH PARTITION {table} FOR VALUES IN ({name})"


def forget_queue(queue: QueueTable) -> str:
    """Take out the row of a queue whose table is gone."""
    return store.forget_queue_sql(literal(queue.queue or ""))


def enter_queue(queue: QueueTable) -> str:
    """A row for a table of jobs that has none."""
    return store.enter_queue_sql(literal(queue.bound or ""), literal(queue.table))
