"""The schema as the server's catalog shows it, and as this release makes it.

What a release makes is in sql/catalog.json, written by scripts/catalog.py from real servers: for every object the facts
that may be found, more than one where PostgreSQL versions print them differently. Tables of queues and of archive slots
are alike, so each kind is listed once, under the names `*queue` and `*slot`; `*ordered` is what a queue that is ordered by
key has in addition, `*shared` one that is claimed key by key without order.
"""

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..sql import expected_catalog, query
from .statement import Flow, Row, Statement, named, nothing

Facts = dict[str, Any]
QUEUE, ORDERED, SHARED, SLOT = "*queue", "*ordered", "*shared", "*slot"
SLOTS = tuple(f"archive_{n:02}" for n in range(32))
# Properties that a partition of `work` or `archive` shares with its parent.
_INHERITED = ("type", "not_null", "generated", "identity", "collation")


@dataclass(frozen=True, slots=True)
class QueueTable:
    """A queue and its table; one of them may be missing."""

    queue: str | None
    table: str
    exists: bool
    attached: bool
    bound: str | None  # the queue it is attached for
    bytes: int
    kind: str = QUEUE  # or ORDERED, or SHARED


@dataclass(frozen=True, slots=True)
class Key:
    """What an object is called. `name` is empty for tables, views, sequences and rows; of a function: its arguments."""

    kind: str
    of: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.of}.{self.name}" if self.name else f"{self.kind} {self.of}"


@dataclass(frozen=True, slots=True)
class Catalog:
    major: int
    queues: list[QueueTable]
    objects: dict[Key, Facts]


@dataclass(frozen=True, slots=True)
class Expected:
    majors: frozenset[int]
    objects: dict[Key, list[Facts]]


@dataclass(frozen=True, slots=True)
class Difference:
    key: Key
    found: Facts | None  # None: it is missing
    expected: Facts | None  # None: this release does not make it
    queue: str | None = None  # whose table it belongs to

    def parts(self) -> list[str]:
        """The facts that differ."""
        if self.found is None or self.expected is None:
            return []
        return sorted(k for k in {*self.found, *self.expected} if self.found.get(k) != self.expected.get(k))


def read_catalog() -> Flow[Catalog]:
    yield from named("catalog_path", (), nothing)
    major = yield from named("catalog_major", (), lambda rows: int(rows[0][0]))
    objects: dict[Key, Facts] = {}
    for kind, statement in _PARTS.items():
        objects |= yield from _part(kind, statement())
    has = {key.of for key in objects if key.kind == "table"}
    queues = (yield from _queues()) if "queues" in has else []
    if {"engine", "archive_slots", "workflow_upkeep"} <= has:  # an older schema has not all of them
        objects |= yield from _part("rows", query("catalog_rows"))
    return Catalog(major, queues, objects)


_PARTS: dict[str, Callable[[], str]] = {
    "table": lambda: query("catalog_tables"),
    "column": lambda: query("catalog_columns"),
    "constraint": lambda: query("catalog_constraints"),
    "index": lambda: query("catalog_indexes"),
    "function": lambda: query("catalog_functions"),
    "view": lambda: query("catalog_views"),
    "sequence": lambda: query("catalog_sequences"),
    "trigger": lambda: query("catalog_triggers"),
    "security": lambda: query("catalog_security"),
}


def _part(kind: str, text: str) -> Statement[dict[Key, Facts]]:
    def decode(rows: Sequence[Row]) -> dict[Key, Facts]:
        return {Key(kind, of, name): json.loads(facts) for of, name, facts in rows}

    return Statement(f"catalog_{kind}", text, (), decode)


def _queues() -> Statement[list[QueueTable]]:
    return named("catalog_queues", (), lambda rows: [QueueTable(*r) for r in rows])


# What is expected ---------------------------------------------------------------------------------------------------


@functools.cache
def expected() -> Expected:
    """What this release makes, with one table for all queues and one for all slots."""
    read = json.loads(expected_catalog())
    objects = {_key(text): facts for text, facts in read["objects"].items()}
    return Expected(frozenset(read["majors"]), objects)


def _key(text: str) -> Key:
    kind, _, rest = text.partition(" ")
    of, _, name = rest.partition(".")
    return Key(kind, of, name)


def portable(catalog: Catalog) -> dict[str, Facts]:
    """A fresh database's catalog as the file has it: one queue and one slot stand for all."""
    names = {q.table: q.queue or "" for q in catalog.queues}
    kinds = {q.table: q.kind for q in catalog.queues}
    plain = {_renamed(k, k.of, QUEUE) for k in catalog.objects if kinds.get(k.of) == QUEUE}
    kept: dict[str, Facts] = {}
    for key, facts in catalog.objects.items():
        if key.of in names:
            own = _without(facts, _literal(names[key.of]))
            if kinds[key.of] == QUEUE or _renamed(key, key.of, QUEUE) not in plain:
                kept[str(_renamed(key, key.of, kinds[key.of]))] = own
        elif key.of in SLOTS:
            kept[str(_renamed(key, key.of, SLOT))] = _without(facts, str(int(key.of[-2:])))
        else:
            kept[str(key)] = facts
    return kept


def _renamed(key: Key, old: str, new: str) -> Key:
    name = f"{new}_{key.name[len(old) + 1 :]}" if key.name.startswith(f"{old}_") else key.name
    return Key(key.kind, new, name)


def _literal(queue: str) -> str:
    return f"'{queue}'"


def _without(facts: Facts, own: str) -> Facts:
    """The facts without the ones that belong to one table alone."""
    return _replaced(facts, re.compile(rf"(?<![\w']){re.escape(own)}(?![\w'])"), "*own*")


def _replaced(facts: Facts, old: re.Pattern[str], new: str) -> Facts:
    changed = {k: old.sub(lambda _: new, facts[k]) for k in ("bound", "definition") if facts.get(k)}
    return {**facts, **changed}


def expand(catalog: Catalog) -> dict[Key, tuple[list[Facts], str | None]]:
    """What this database should have: its own queues, each slot, and the rest."""
    wanted: dict[Key, tuple[list[Facts], str | None]] = {}
    own = re.compile(re.escape("*own*"))
    for key, choices in expected().objects.items():
        if key.of in (QUEUE, ORDERED, SHARED):
            for queue in catalog.queues:
                if queue.queue and queue.exists and queue.attached and key.of in (QUEUE, queue.kind):
                    filled = [_replaced(f, own, _literal(queue.queue)) for f in choices]
                    wanted[_renamed(key, key.of, queue.table)] = (filled, queue.queue)
        elif key.of == SLOT:
            for number, table in enumerate(SLOTS):
                filled = [_replaced(f, own, str(number)) for f in choices]
                wanted[_renamed(key, SLOT, table)] = (filled, None)
        else:
            wanted[key] = (choices, None)
    return wanted


def compare(catalog: Catalog) -> list[Difference]:
    """What is missing, what differs, and which objects get in the way that this release does not make."""
    wanted = expand(catalog)
    lost = {key.of for key in wanted if key.kind == "table" and key not in catalog.objects}
    found: list[Difference] = []
    for key, (choices, queue) in wanted.items():
        if key.of in lost and key.kind != "table":
            continue  # it is missing with its table
        has = catalog.objects.get(key)
        if has is None:
            found.append(Difference(key, None, choices[-1], queue))
        elif not _fits(key, has, choices, catalog):
            found.append(Difference(key, has, _nearest(has, choices), queue))
    return found + [Difference(k, catalog.objects[k], None, None) for k in _extras(catalog, wanted)]


_EXTRA = ("index", "trigger", "security", "constraint")


def _extras(catalog: Catalog, wanted: Mapping[Key, object]) -> list[Key]:
    """On our tables, and functions under our names. What a partition has from its parent is reported for the parent."""
    tables = {key.of for key in wanted if key.kind == "table"}
    functions = {key.of for key in wanted if key.kind == "function"}

    def is_extra(key: Key) -> bool:
        if key in wanted:
            return False
        if key.kind == "function":
            return key.of in functions
        facts = catalog.objects[key]
        forced = key.kind == "column" and facts["not_null"] and not facts["default"] and not facts["identity"]
        return key.of in tables and (key.kind in _EXTRA or forced)

    found = [key for key in catalog.objects if is_extra(key)]
    from_parent = [
        key
        for key in found
        if key.kind in ("constraint", "column") and Key(key.kind, _parent(key, catalog), key.name) in found
    ]
    return [key for key in found if key not in from_parent]


def _parent(key: Key, catalog: Catalog) -> str:
    if key.of in SLOTS:
        return "archive"
    return "work" if any(q.table == key.of for q in catalog.queues) else ""


def _fits(key: Key, has: Facts, choices: Sequence[Facts], catalog: Catalog) -> bool:
    ignored: tuple[str, ...] = ()
    if key.kind == "column" and (key.of in SLOTS or any(q.table == key.of for q in catalog.queues)):
        ignored = _INHERITED
    if key.kind == "index":
        ignored = ("valid",)  # reported by a separate check
    if key.kind == "function" and not has["public"]:
        ignored = ("public",)  # fewer rights than this release gives harm nobody
    shown = _pick(has, ignored)
    if any(shown == _pick(choice, ignored) for choice in choices):
        return True
    # Printed differently from version to version, and not yet compared for this one.
    return len(choices) > 1 and catalog.major not in expected().majors


def _pick(facts: Mapping[str, Any], ignored: Sequence[str]) -> Facts:
    return {k: v for k, v in facts.items() if k not in ignored}


def _nearest(has: Facts, choices: Sequence[Facts]) -> Facts:
    return min(choices, key=lambda c: sum(has.get(k) != c.get(k) for k in c))


def invalid_indexes(catalog: Catalog) -> list[tuple[str, str]]:
    """(table, index) that the server maintains but does not use."""
    return [
        (k.of, k.name)
        for k, facts in catalog.objects.items()
        if k.kind == "index" and facts["valid"] is False
    ]
