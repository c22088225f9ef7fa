"""The schema: pending migrations, drift from what this release makes, indexes, queues and their tables."""

import functools
from collections.abc import Iterator

from ...db import migrate
from ...db.migrate import repair
from ...db.migrate.repair import Step, ident
from ...store.catalog import Difference, Facts, Key, QueueTable, compare, expand, invalid_indexes
from ...store.doctor import note_queue, remake_queue
from ..wording import listed, several
from .finding import Check, Finding, Patient

_STORAGE = {"options", "statistics"}
_ORDER = ("table", "sequence", "function", "column", "constraint", "view", "rows")
_KINDS = {"security": "table"}
_HOT = ("claims", "workers", "engine")


def check_migrations(p: Patient) -> Iterator[Finding]:
    found = migrate.status(p.database.dsn)
    if found.pending:
        names = [f"{number:04}_{name}" for number, name in found.pending]
        what = f"{several(len(names), 'migration')} of this release {'is' if len(names) == 1 else 'are'} not applied"
        yield Finding("migrations_pending", "error", what, ["holdfast migrate up"], names)


# Drift --------------------------------------------------------------------------------------------------------------


def check_schema(p: Patient) -> Iterator[Finding]:
    differ = [d for d in compare(p.catalog) if d.key.kind != "index"]
    extra = [d for d in differ if d.expected is None]
    ours = [d for d in differ if d.expected is not None]
    safe = [d for d in ours if repair.repair(d)]
    storage = [d for d in safe if d.found and set(d.parts()) <= _STORAGE]
    drift = [d for d in safe if d not in storage]
    rest = [d for d in ours if d not in safe]
    if drift:
        what = f"{several(len(drift), 'object')} of the schema not as this release makes {_them(drift)}"
        yield Finding("schema_drift", "error", what, [p.fixing("schema")], listed(_lines(drift)))
    if rest:
        objects = several(len(rest), "object")
        what = (
            f"{objects} of the schema not as this release makes {_them(rest)}, to be mended at a quiet time"
        )
        statements = [text for d in rest for text in repair.by_hand(d)]
        fix = [p.psql(*statements)] if statements else ["holdfast migrate sql"]
        yield Finding("schema_by_hand", "error", what, fix, listed(_lines(rest)))
    if storage:
        what = f"{several(len(storage), 'storage setting')} not as this release makes {_them(storage)}"
        yield Finding("storage_drift", "warning", what, [p.fixing("schema")], listed(_lines(storage)))
    yield from _more(p, [d for d in extra if d.key.kind != "trigger"])
    if triggers := [d for d in extra if d.key.kind == "trigger"]:
        drops = [repair.drop_extra(d) for d in triggers]
        what = f"{several(len(triggers), 'trigger')} on Holdfast's tables: what they do is done in every claim or settle"
        yield Finding("trigger_extra", "warning", what, [p.psql(*drops)], listed(_lines(triggers)))


def _more(p: Patient, extra: list[Difference]) -> Iterator[Finding]:
    if extra:
        things = f"{several(len(extra), 'thing')} in the schema that this release does not make"
        columns = [d for d in extra if d.key.kind == "column"]
        drops = [f"ALTER TABLE holdfast.{ident(d.key.of)} DROP COLUMN {ident(d.key.name)}" for d in columns]
        yield Finding(
            "schema_extra",
            "error",
            f"{things}: {'it' if len(extra) == 1 else 'they'} may refuse or hide jobs",
            [p.psql(*(repair.drop_extra(d) for d in extra))],
            listed(_lines(extra)),
            [f"{p.psql(*drops)}   (loses what is in {_them(columns)})"] if drops else [],
        )


def _them(items: list[Difference]) -> str:
    return "it" if len(items) == 1 else "them"


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
        return "another function by the name of ours, which a call may mean"
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


def fix_schema(p: Patient) -> Iterator[str]:
    differ = [d for d in compare(p.catalog) if d.key.kind in _ORDER and d.expected is not None]
    for d in sorted(differ, key=lambda d: _ORDER.index(d.key.kind)):
        steps = repair.repair(d)
        _run(p, steps)
        if steps:
            yield f"mended: {describe(d)}"


def _run(p: Patient, steps: list[Step]) -> None:
    for step in steps:
        p.probe.mend(step.text, concurrently=step.concurrently, otherwise=step.otherwise)


# Indexes ------------------------------------------------------------------------------------------------------------


def check_indexes(p: Patient) -> Iterator[Finding]:
    wrong, extra = _indexes(p)
    if wrong:
        what = f"{several(len(wrong), 'index', 'indexes')} missing or other than this release makes"
        yield Finding("index_missing", "error", what, [p.fixing("indexes")], listed(_lines(wrong)))
    invalid = [f"holdfast.{index} on holdfast.{table}" for table, index in invalid_indexes(p.catalog)]
    if invalid:
        what = "indexes that a failed build left behind: kept up by every write, used by no search"
        yield Finding("index_invalid", "error", what, [p.fixing("indexes")], listed(invalid))
    if extra:
        what = "more indexes than this release makes on tables that every claim writes to: each makes claims dearer"
        drops = [p.psql(repair.drop_extra(d)) for d in extra]
        yield Finding("index_extra", "warning", what, drops, listed(_lines(extra)))


def _indexes(p: Patient) -> tuple[list[Difference], list[Difference]]:
    hot = {q.table for q in p.catalog.queues} | set(_HOT)
    differ = [d for d in compare(p.catalog) if d.key.kind == "index"]
    extra = [d for d in differ if d.expected is None and d.key.of in hot and d.found and d.found["valid"]]
    extra = [d for d in extra if Key("constraint", d.key.of, d.key.name) not in p.catalog.objects]
    return [d for d in differ if d.expected is not None], extra


def fix_indexes(p: Patient) -> Iterator[str]:
    """Leftovers first: one may have the name of an index that is to be built. A parent of partitions after its leaves."""
    wanted = {k: choices[-1] for k, (choices, _) in expand(p.catalog).items() if k.kind == "index"}
    wrong, _ = _indexes(p)
    differing = {d.key for d in wrong}
    for key in (Key("index", table, index) for table, index in invalid_indexes(p.catalog)):
        if key in differing:
            continue
        if key.of == "archive":  # built again below, from its leaves
            wrong.append(Difference(key, None, wanted.get(key)))
            continue
        _run(p, [repair.revive_index(key.name, ours=key in wanted)])
        yield f"{'rebuilt' if key in wanted else 'dropped'}: holdfast.{key.name}"
    for d in sorted(wrong, key=lambda d: d.key.of == "archive"):
        _run(p, repair.build_index(d))
        yield f"built: holdfast.{d.key.name}"


# Queues and their tables --------------------------------------------------------------------------------------------


def check_queues(p: Patient) -> Iterator[Finding]:
    lost, unknown = _torn(p)
    if lost:
        what = f"{several(len(lost), 'queue')} without a table of live jobs: enqueue fails there"
        details = [f"queue {q.queue}: holdfast.{q.table} {_state(q)}" for q in lost]
        yield Finding("queue_without_table", "error", what, [p.fixing("queues")], listed(details))
    if unknown:
        what = f"{several(len(unknown), 'table')} of jobs that no queue is written down for: workers refuse to serve it"
        details = [f"holdfast.{q.table} holds queue {q.bound}" for q in unknown]
        yield Finding("table_without_queue", "error", what, [p.fixing("queues")], listed(details))


def _torn(p: Patient) -> tuple[list[QueueTable], list[QueueTable]]:
    lost = [q for q in p.catalog.queues if q.queue and not (q.exists and q.attached)]
    return lost, [q for q in p.catalog.queues if q.queue is None and q.bound]


def _state(q: QueueTable) -> str:
    return "is not attached to holdfast.work" if q.exists else "is not there"


def fix_queues(p: Patient) -> Iterator[str]:
    lost, unknown = _torn(p)
    for q in lost:
        name = q.queue or ""
        if q.exists:
            _run(p, [repair.attach_queue(q)])
            yield f"attached: holdfast.{q.table}"
        elif p.database.run(functools.partial(remake_queue, name)):
            yield f"made again, empty: queue {name}"
    for q in unknown:
        bound = q.bound or ""
        if p.database.run(functools.partial(note_queue, bound, q.table)):
            yield f"written down: queue {bound}"


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
        "the schema is what this release makes, and nothing is in its way",
        ("schema_drift", "schema_by_hand", "storage_drift", "schema_extra", "trigger_extra"),
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
