"""The schema: pending migrations, differences from this release, indexes, queues and their tables."""

from collections.abc import Iterator

from ...db import migrate
from ...store.catalog import Difference, Facts, Key, QueueTable, compare, expand, invalid_indexes
from ..advice import Advice, advise, run_sql
from ..wording import listed, several, them
from . import statements
from .finding import Check, Finding, Patient

_STORAGE = {"options", "statistics"}
_KINDS = {"security": "table"}
_HOT = ("claims", "workers", "engine")


def check_migrations(p: Patient) -> Iterator[Finding]:
    found = migrate.status(p.database.dsn)
    if found.pending:
        names = [f"{number:04}_{name}" for number, name in found.pending]
        what = f"{several(len(names), 'migration')} of this release {'is' if len(names) == 1 else 'are'} not applied"
        yield Finding("migrations_pending", "error", what, [advise("migrate")], names)


# Drift --------------------------------------------------------------------------------------------------------------


def check_schema(p: Patient) -> Iterator[Finding]:
    differ = [d for d in compare(p.catalog) if d.key.kind != "index"]
    extra = [d for d in differ if d.expected is None]
    ours = [d for d in differ if d.expected is not None]
    storage = [d for d in ours if d.found and set(d.parts()) <= _STORAGE]
    if drift := [d for d in ours if d not in storage]:
        what = f"{several(len(drift), 'object')} of the schema not as this release makes {them(drift)}"
        yield Finding("schema_drift", "error", what, [advise("print_schema")], listed(_lines(drift)))
    if storage:
        what = f"{several(len(storage), 'storage setting')} not as this release makes {them(storage)}"
        yield Finding("storage_drift", "warning", what, [advise("print_schema")], listed(_lines(storage)))
    yield from _more([d for d in extra if d.key.kind != "trigger"])
    if triggers := [d for d in extra if d.key.kind == "trigger"]:
        drops = [statements.drop_extra(d) for d in triggers]
        what = f"{several(len(triggers), 'trigger')} on Holdfast's tables: what they do is done in every claim or settle"
        yield Finding("trigger_extra", "warning", what, [run_sql(*drops)], listed(_lines(triggers)))


def _more(extra: list[Difference]) -> Iterator[Finding]:
    if extra:
        things = f"{several(len(extra), 'thing')} in the schema that this release does not make"
        columns = [d for d in extra if d.key.kind == "column"]
        drops = [statements.drop_column(d) for d in columns]
        yield Finding(
            "schema_extra",
            "error",
            f"{things}: {'it' if len(extra) == 1 else 'they'} may refuse or hide jobs",
            [run_sql(*(statements.drop_extra(d) for d in extra))],
            listed(_lines(extra)),
            [run_sql(*drops, note=f"loses what is in {them(columns)}")] if drops else [],
        )


def _lines(differences: list[Difference]) -> list[str]:
    return [describe(d) for d in differences]


def describe(d: Difference) -> str:
    dot = "." if d.key.name and d.key.kind != "function" else ""
    name = f"holdfast.{d.key.of}{dot}{d.key.name}"
    if d.expected is None:
        return f"{_KINDS.get(d.key.kind, d.key.kind)} {name}: {_extra(d.key.kind, d.found or {})}"
    if d.found is None:
        return f"{d.key.kind} {name} is missing"
    said = [text for part in d.parts() if part != "text" for text in _said(part, d.found, d.expected)]
    return f"{d.key.kind} {name}: {'; '.join(said) or 'its text differs'}"


def _extra(kind: str, found: Facts) -> str:
    if kind == "function":
        return "another function of the same name, which a call may reach"
    if kind == "column":
        return "NOT NULL and without a default, so no row can be written"
    return str(found.get("definition"))


def _said(part: str, found: Facts, expected: Facts) -> list[str]:
    has, wants = found.get(part), expected.get(part)
    if isinstance(has, dict) and isinstance(wants, dict):
        names = sorted(n for n in {*has, *wants} if has.get(n) != wants.get(n))
        return [text for n in names for text in _said(n, has, wants)]
    return [f"{part} is {_plain(has)}, should be {_plain(wants)}"]


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "not set" if value is None else str(value)


# Indexes ------------------------------------------------------------------------------------------------------------


def check_indexes(p: Patient) -> Iterator[Finding]:
    wrong, extra = _indexes(p)
    if wrong:
        what = f"{several(len(wrong), 'index', 'indexes')} missing or other than this release makes"
        yield Finding("index_missing", "error", what, [build_indexes(p)], listed(_lines(wrong)))
    if invalid := _invalid(p):
        what = "indexes that a failed build left behind: kept up by every write, used by no search"
        details = [f"holdfast.{key.name} on holdfast.{key.of}" for key in invalid]
        yield Finding("index_invalid", "error", what, [revive_indexes(p)], listed(details))
    if extra:
        what = "more indexes than this release makes on tables that every claim writes to: each makes claims more expensive"
        drops = [run_sql(statements.drop_extra(d)) for d in extra]
        yield Finding("index_extra", "warning", what, drops, listed(_lines(extra)))


def build_indexes(p: Patient) -> Advice:
    """A parent of partitions after its leaves."""
    wrong = sorted(_indexes(p)[0], key=lambda d: d.key.of == "archive")
    return run_sql(*(text for d in wrong for text in statements.build_index(d)))


def revive_indexes(p: Patient) -> Advice:
    wanted = expand(p.catalog)
    return run_sql(*(statements.revive_index(key, ours=key in wanted) for key in _invalid(p)))


def _invalid(p: Patient) -> list[Key]:
    return [Key("index", table, index) for table, index in invalid_indexes(p.catalog)]


def _indexes(p: Patient) -> tuple[list[Difference], list[Difference]]:
    hot = {q.table for q in p.catalog.queues} | set(_HOT)
    differ = [d for d in compare(p.catalog) if d.key.kind == "index"]
    extra = [d for d in differ if d.expected is None and d.key.of in hot and d.found and d.found["valid"]]
    extra = [d for d in extra if Key("constraint", d.key.of, d.key.name) not in p.catalog.objects]
    return [d for d in differ if d.expected is not None], extra


# Queues and their tables --------------------------------------------------------------------------------------------


def check_queues(p: Patient) -> Iterator[Finding]:
    lost, unknown = _torn(p)
    if lost:
        what = f"{several(len(lost), 'queue')} without a table of live jobs: enqueue fails there"
        details = [f"queue {q.queue}: holdfast.{q.table} {_state(q)}" for q in lost]
        fix = [line for q in lost for line in _restore(q)]
        yield Finding("queue_without_table", "error", what, fix, listed(details))
    if unknown:
        what = f"{several(len(unknown), 'table')} of jobs that no queue is written down for: workers refuse to serve it"
        details = [f"holdfast.{q.table} holds queue {q.bound}" for q in unknown]
        fix = [run_sql(statements.enter_queue(q)) for q in unknown]
        yield Finding("table_without_queue", "error", what, fix, listed(details))


def _torn(p: Patient) -> tuple[list[QueueTable], list[QueueTable]]:
    lost = [q for q in p.catalog.queues if q.queue and not (q.exists and q.attached)]
    return lost, [q for q in p.catalog.queues if q.queue is None and q.bound]


def _restore(q: QueueTable) -> list[Advice]:
    """Attach its table; if that is gone, create the queue again: empty, and with the default rules."""
    if q.exists:
        return [run_sql(statements.attach_queue(q))]
    return [run_sql(statements.forget_queue(q)), advise("create_queue", queue=q.queue or "")]


def _state(q: QueueTable) -> str:
    return "is not attached to holdfast.work" if q.exists else "is not there"


CHECKS = (
    Check(
        "migrations",
        "every migration is applied",
        ("migrations_pending",),
        check_migrations,
        needs_schema=False,
    ),
    Check(
        "schema",
        "the schema is exactly what this release makes",
        ("schema_drift", "storage_drift", "schema_extra", "trigger_extra"),
        check_schema,
        compares=True,
    ),
    Check(
        "queues",
        "every queue has its table",
        ("queue_without_table", "table_without_queue"),
        check_queues,
    ),
    Check(
        "indexes",
        "every index is there and valid",
        ("index_missing", "index_invalid", "index_extra"),
        check_indexes,
        compares=True,
    ),
)
