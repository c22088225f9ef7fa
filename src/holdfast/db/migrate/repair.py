"""The statements that make one object as this release has it again.

Safe ones take no long lock and lose nothing: functions, views, checks, defaults, storage settings, statistics targets,
rows and tables that are missing, and indexes, which are built CONCURRENTLY. What rewrites a table, scans it under a lock
or may lose data is not done here: `by_hand` only says how.
"""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass

from holdfast import sql as files
from holdfast.db.migrate.text import Migration
from holdfast.store.catalog import SLOTS, Difference, Key, QueueTable

_NOT_ALONE = ("work", "archive", "queues", "migrations")  # without them there is more to mend than a table
_WORD = re.compile(r"[a-z_][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Step:
    text: str
    otherwise: str | None = None  # when the server cannot change the object in place

    @property
    def concurrently(self) -> bool:
        return "CONCURRENTLY" in self.text


def ident(name: str) -> str:
    return name if _WORD.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _table(key: Key) -> str:
    return f"holdfast.{ident(key.of)}"


@functools.cache
def _statements() -> tuple[str, ...]:
    return tuple(Migration(0, "schema", files.schema()).statements)


def _creating(pattern: str) -> list[str]:
    wanted = re.compile(pattern)
    return [text for text in _statements() if wanted.match(text)]


# What can be done at any time ---------------------------------------------------------------------------------------


def repair(difference: Difference) -> list[Step]:
    """Empty: it cannot be done safely."""
    make = _REPAIRS.get(difference.key.kind)
    return make(difference) if make else []


def _repair_table(d: Difference) -> list[Step]:
    table, expected, found = _table(d.key), d.expected or {}, d.found
    if found is None:
        return _missing_table(d.key.of)
    if d.key.of in SLOTS and found.get("of") is None and found.get("kind") == "r":
        return [_attach_slot(d.key.of)]
    if d.parts() != ["options"]:
        return []
    has, wants = found["options"], expected["options"]
    steps = []
    if changed := {k: v for k, v in wants.items() if has.get(k) != v}:
        steps.append(Step(f"ALTER TABLE {table} SET ({', '.join(f'{k} = {v}' for k, v in changed.items())})"))
    if extra := [k for k in has if k not in wants]:
        steps.append(Step(f"ALTER TABLE {table} RESET ({', '.join(map(ident, extra))})"))
    return steps


def _missing_table(name: str) -> list[Step]:
    if name in SLOTS:
        table = f"holdfast.{name}"
        return [
            Step(f"CREATE TABLE {table} (LIKE holdfast.archive INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"),
            Step(f"CREATE INDEX {name}_id_idx ON {table} (id)"),
            _attach_slot(name),
        ]
    if name in _NOT_ALONE:
        return []
    word = re.escape(name)
    made = _creating(rf"CREATE TABLE holdfast\.{word} \(")
    made += _creating(rf"CREATE (UNIQUE )?INDEX \w+ ON holdfast\.{word} ")
    made += _creating(rf"INSERT INTO holdfast\.{word} ")
    return [Step(text) for text in made]


def _attach_slot(name: str) -> Step:
    number = int(name[-2:])
    return Step(f"ALTER TABLE holdfast.archive ATTACH PARTITION holdfast.{name} FOR VALUES IN ({number})")


def _repair_column(d: Difference) -> list[Step]:
    if d.found is None or d.expected is None or not set(d.parts()) <= {"default", "statistics"}:
        return []
    head = f"ALTER TABLE {_table(d.key)} ALTER COLUMN {ident(d.key.name)}"
    steps = []
    if "default" in d.parts():
        if d.expected["generated"]:
            return []
        default = d.expected["default"]
        steps.append(Step(f"{head} DROP DEFAULT" if default is None else f"{head} SET DEFAULT {default}"))
    if "statistics" in d.parts():
        steps.append(Step(f"{head} SET STATISTICS {d.expected['statistics']}"))
    return steps


def _repair_constraint(d: Difference) -> list[Step]:
    assert d.expected is not None
    table, name = _table(d.key), ident(d.key.name)
    steps = []
    if d.parts() != ["valid"]:
        drop = f"DROP CONSTRAINT {name}, " if d.found else ""
        steps.append(
            Step(f"ALTER TABLE {table} {drop}ADD CONSTRAINT {name} {d.expected['definition']} NOT VALID")
        )
    return [*steps, Step(f"ALTER TABLE {table} VALIDATE CONSTRAINT {name}")]


def _repair_function(d: Difference) -> list[Step]:
    name = re.escape(d.key.of)  # of one function in this release
    made = _creating(rf"CREATE FUNCTION holdfast\.{name}\(")
    made += [text for text in _creating(r"DO ") if f"CREATE FUNCTION holdfast.{d.key.of}(" in text]
    again = [Step(text.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")) for text in made]
    rights = _creating(rf"(REVOKE ALL|COMMENT) ON FUNCTION holdfast\.{name}\b")
    # By all of its name: somebody may have another one with other arguments.
    exact = (text.replace(f"{d.key.of} FROM ", f"{d.key.of}{d.key.name} FROM ") for text in rights)
    return [*again, *(Step(text) for text in exact)]


# A view whose columns differ has to be made anew; its owner and those who may read it stay.
_VIEW_AGAIN = """
DO $again$
DECLARE
    rights aclitem[];
    owner oid;
    given record;
BEGIN
    SELECT c.relacl, c.relowner INTO STRICT rights, owner FROM pg_class c WHERE c.oid = '{view}'::regclass;
    DROP VIEW {view};
    EXECUTE $create${create}$create$;
    FOR given IN
        SELECT x.privilege_type AS what, CASE WHEN x.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(r.rolname) END AS who,
               CASE WHEN x.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END AS how
        FROM aclexplode(rights) x LEFT JOIN pg_roles r ON r.oid = x.grantee
        WHERE x.grantee <> owner AND (x.grantee = 0 OR r.oid IS NOT NULL)
    LOOP
        EXECUTE format('GRANT %s ON {view} TO %s%s', given.what, given.who, given.how);
    END LOOP;
    IF owner <> (SELECT c.relowner FROM pg_class c WHERE c.oid = '{view}'::regclass) THEN
        EXECUTE format('ALTER VIEW {view} OWNER TO %s', owner::regrole);
    END IF;
END
$again$
"""


def _repair_view(d: Difference) -> list[Step]:
    name = re.escape(d.key.of)
    steps = []
    for text in _creating(rf"CREATE VIEW holdfast\.{name} "):
        again = text.replace("CREATE VIEW", "CREATE OR REPLACE VIEW", 1)
        steps.append(Step(again, _VIEW_AGAIN.format(view=f"holdfast.{ident(d.key.of)}", create=text)))
    return [*steps, *(Step(text) for text in _creating(rf"COMMENT ON VIEW holdfast\.{name} "))]


def _repair_sequence(d: Difference) -> list[Step]:
    if d.found is None or d.expected is None:
        return []
    e = d.expected
    cycle = "CYCLE" if e["cycle"] else "NO CYCLE"
    return [
        Step(
            f"ALTER SEQUENCE {_table(d.key)} AS {e['type']} INCREMENT {e['increment']} CACHE {e['cache']} {cycle}"
        )
    ]


def _repair_rows(d: Difference) -> list[Step]:
    if d.key.of == "engine":
        return [
            Step(f"{text} ON CONFLICT DO NOTHING") for text in _creating(r"INSERT INTO holdfast\.engine ")
        ]
    rows = "INSERT INTO holdfast.archive_slots SELECT n, NULL FROM generate_series(0, 31) n ON CONFLICT DO NOTHING"
    return [Step(rows)]


_REPAIRS: dict[str, Callable[[Difference], list[Step]]] = {
    "table": _repair_table,
    "column": _repair_column,
    "constraint": _repair_constraint,
    "function": _repair_function,
    "view": _repair_view,
    "sequence": _repair_sequence,
    "rows": _repair_rows,
}


# Indexes ------------------------------------------------------------------------------------------------------------


def build_index(d: Difference) -> list[Step]:
    """An index that is missing, or is not what it should be."""
    assert d.expected is not None
    table, name, expected = _table(d.key), ident(d.key.name), d.expected
    unique = "UNIQUE " if expected["unique"] else ""
    if d.key.of == "archive":  # the parent: its leaves are there by now
        leaves = [
            Step(f"ALTER INDEX holdfast.{name} ATTACH PARTITION holdfast.{slot}_id_idx") for slot in SLOTS
        ]
        return [
            Step(f"CREATE INDEX IF NOT EXISTS {name} ON ONLY {table} USING {expected['definition']}"),
            *leaves,
        ]
    made = f"CREATE {unique}INDEX CONCURRENTLY {{}} ON {table} USING {expected['definition']}"
    key = f"ALTER TABLE {table} ADD CONSTRAINT {name} PRIMARY KEY USING INDEX {name}"
    if d.found is None:
        return [Step(made.format(name)), *([Step(key)] if expected["primary"] else [])]
    fresh = ident(f"{d.key.name}_again")
    if d.found["primary"] or expected["primary"]:
        swap = f"DROP CONSTRAINT {name}, ADD CONSTRAINT {name} PRIMARY KEY USING INDEX {fresh}"
        return [Step(made.format(fresh)), Step(f"ALTER TABLE {table} {swap}")]
    return [
        Step(made.format(fresh)),
        Step(f"DROP INDEX CONCURRENTLY holdfast.{name}"),
        Step(f"ALTER INDEX holdfast.{fresh} RENAME TO {name}"),
    ]


def revive_index(index: str, *, ours: bool) -> Step:
    """An invalid one: rebuilt when it is ours, dropped when it is a leftover of a build that failed."""
    verb = "REINDEX INDEX" if ours else "DROP INDEX"
    return Step(f"{verb} CONCURRENTLY holdfast.{ident(index)}")


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
        case "column":  # what is in it stays
            return f"ALTER TABLE {table} ALTER COLUMN {name} DROP NOT NULL"
    return f"DROP INDEX CONCURRENTLY holdfast.{ident(d.key.name)}"


# Queues -------------------------------------------------------------------------------------------------------------


def attach_queue(queue: QueueTable) -> Step:
    """Its table is there and is no partition of `work`."""
    value = literal(queue.queue or "")
    return Step(
        f"ALTER TABLE holdfast.work ATTACH PARTITION holdfast.{ident(queue.table)} FOR VALUES IN ({value})"
    )


# What is to be done at a quiet time ---------------------------------------------------------------------------------


def by_hand(d: Difference) -> list[str]:
    """SQL for a DBA to read and run. Empty: there is no statement for it."""
    if d.expected is None:
        return [drop_extra(d)]
    if d.key.kind == "column":
        return _column_by_hand(d)
    if d.key.kind == "table" and d.found is not None and d.parts() == ["persistence"]:
        return [f"ALTER TABLE {_table(d.key)} SET LOGGED"]
    return []


def _column_by_hand(d: Difference) -> list[str]:
    assert d.expected is not None
    table, name, e = _table(d.key), ident(d.key.name), d.expected
    collation = f' COLLATE "{e["collation"]}"' if e["collation"] else ""
    default = f" DEFAULT {e['default']}" if e["default"] else ""
    if e["generated"]:
        default = f" GENERATED ALWAYS AS ({e['default']}) STORED"
    added = f"ADD COLUMN {name} {e['type']}{collation}{default}{' NOT NULL' if e['not_null'] else ''}"
    if d.found is None:
        return [f"ALTER TABLE {table} {added}"]
    if "generated" in d.parts() or (e["generated"] and "default" in d.parts()):
        return [f"ALTER TABLE {table} DROP COLUMN {name}, {added}"]
    changes = []
    if {"type", "collation"} & set(d.parts()):
        changes.append(f"ALTER COLUMN {name} TYPE {e['type']}{collation}")
    if "not_null" in d.parts():
        changes.append(f"ALTER COLUMN {name} {'SET' if e['not_null'] else 'DROP'} NOT NULL")
    return [f"ALTER TABLE {table} {', '.join(changes)}"] if changes else []
