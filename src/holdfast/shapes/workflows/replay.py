"""A run's history for its code: the pure part, without a database, a clock or asyncio.

A call has a key, `scope/name#n`, and a place in its scope, both taken when it is called. A key that the history has is a
hit, wherever it has moved. A key that it does not have is new, unless a record from before this place has
not been asked for yet: then the code is not the code that wrote the history.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from ...errors import InvalidOption
from ...tasks.payload import shown
from .faults import Diverged
from .journal import Kind, Record, Stored

KEY_BYTES = 1024  # as the table of records says
ADVICE = "see holdfast workflow check"


class CallPlace(NamedTuple):
    """The place of a recorded call. `ordinal` is None if it has no order: patch markers and compensations."""

    key: str
    scope: str
    ordinal: int | None


@dataclass(slots=True)
class _Scope:
    names: dict[str, int] = field(default_factory=dict)  # how often each was called
    calls: int = 0
    parallel: int = 0
    unasked: dict[str, int] = field(default_factory=dict)  # recorded key -> its place


class Replay:
    def __init__(self, rows: Iterable[Stored] = ()) -> None:
        self._rows: dict[str, Stored] = {}
        self._scopes: dict[str, _Scope] = {}
        self._below: dict[str, list[_Scope]] = {}  # of a scope, with itself
        self._left = 0  # records that the code has not asked for yet
        self._pushed: set[str] = set()  # scopes with compensations in them, or below
        self._patches: dict[str, bool] = {}
        self._marked: set[str] = set()  # markers that were there at the beginning
        self.handed_on: set[str] = set()  # records of lost branches whose signal another call has
        self.lost_child = False  # a lost branch may have taken the end of a child
        self._latest: datetime | None = None
        self.size = 0  # of results and errors, as text
        for row in rows:
            self.keep(row)
            if row.record.ordinal is not None:
                self._scope(scope_of(row.record.key)).unasked[row.record.key] = row.record.ordinal
                self._left += 1
            elif row.record.kind == "patch":
                self._marked.add(row.record.key)
            if row.record.kind == "signal":
                self.handed_on.update(origins(row.record))

    def __len__(self) -> int:
        """How many records the run has."""
        return len(self._rows)

    def rows(self) -> list[Stored]:
        return list(self._rows.values())

    @property
    def replaying(self) -> bool:
        """Whether some of the history has not been asked for yet."""
        return self._left > 0

    def take(self, scope: str, name: str) -> CallPlace:
        """The place of the next call of that name."""
        state = self._scope(scope)
        key = _fitting(f"{_inside(scope)}{name}{self._count(state, name)}")
        place = CallPlace(key, scope, state.calls)
        state.calls += 1
        return place

    def take_apart(self, scope: str, name: str) -> CallPlace:
        """The same for what has no order."""
        state = self._scope(scope)
        return CallPlace(_fitting(f"{_inside(scope)}{name}{self._count(state, name)}"), scope, None)

    def branches(self, scope: str) -> int:
        """The number of the next parallel call of the scope, from 1 on."""
        state = self._scope(scope)
        state.parallel += 1
        return state.parallel

    def find(self, place: CallPlace, kind: Kind) -> Stored | None:
        """The record of this place. None: there is none, and the call must be made. Diverged: another call's turn."""
        state = self._scope(place.scope)
        if state.unasked.pop(place.key, None) is not None:
            self._left -= 1
        found = self._rows.get(place.key)
        if found is not None:
            if found.record.kind != kind:
                raise Diverged(
                    f"diverged: {_at(place)} the history has {place.key!r} as a {found.record.kind}, "
                    f"the code asks for a {kind}; {ADVICE}",
                    scope=place.scope,
                    n=place.ordinal,
                    recorded=place.key,
                    asked=place.key,
                )
            return found
        if place.ordinal is not None and state.unasked:
            first = min(state.unasked.items(), key=lambda item: item[1])
            if first[1] <= place.ordinal:
                raise Diverged(
                    f"diverged: {_at(place)} the history has {first[0]!r}, the code asks for {place.key!r}; {ADVICE}",
                    scope=place.scope,
                    n=place.ordinal,
                    recorded=first[0],
                    asked=place.key,
                    unasked=[key for key, ordinal in state.unasked.items() if ordinal <= place.ordinal],
                )
        return None

    def end(self, scope: str) -> None:
        """The function, or a branch, has returned: all records of its scope must have been asked for."""
        state = self._scope(scope)
        if state.unasked:
            key, ordinal = min(state.unasked.items(), key=lambda item: item[1])
            raise Diverged(
                f"diverged: at {ordinal} in scope {scope!r} the history has {key!r}, the code ends; {ADVICE}",
                scope=scope,
                n=ordinal,
                recorded=key,
                unasked=list(state.unasked),
            )

    def drop(self, scope: str) -> None:
        """A branch that lost and is not run again: its records stay, and are not asked for."""
        for state in self._below.get(scope, ()):
            self._left -= len(state.unasked)
            self.lost_child |= any(self._rows[key].record.kind == "child" for key in state.unasked)
            state.unasked.clear()

    def has_records(self, scope: str) -> bool:
        """Whether a branch left something: compensations, or records that were not asked for yet."""
        return scope in self._pushed or any(state.unasked for state in self._below.get(scope, ()))

    def pushed(self, scope: str) -> bool:
        """Whether a branch had pushed compensations."""
        return scope in self._pushed

    def patched(self, name: str) -> tuple[bool, bool]:
        """Whether to take the new way, and whether its marker still has to be written. Decided at the first call of
        a name, for the whole run."""
        known = self._patches.get(name)
        if known is not None:
            return known, False
        marked = marker(name) in self._rows
        new = not marked and not self.replaying
        self._patches[name] = marked or new
        return marked or new, new

    def marked(self, name: str) -> bool:
        """The way it took before this replay. A branch that lost takes it again, and decides nothing."""
        return marker(name) in self._marked

    def stored(self, key: str) -> Stored | None:
        """The record under a key, without asking for it."""
        return self._rows.get(key)

    def keep(self, row: Stored) -> None:
        """A record, also one that was written just now."""
        if (before := self._rows.get(row.record.key)) is not None:
            self.size -= size_of(before.record)
        self.size += size_of(row.record)
        self._rows[row.record.key] = row
        if row.record.kind == "compensation" and row.record.key.startswith("saga/"):
            self._pushed.update(_with_outer(scope_of(row.record.key.removeprefix("saga/"))))
        self._latest = self.not_before(row.at)

    def not_before(self, at: datetime) -> datetime:
        """`at`, or the time of the newest record if that is later: a worker estimates the database's clock."""
        return at if self._latest is None or self._latest <= at else self._latest

    def _scope(self, scope: str) -> _Scope:
        found = self._scopes.get(scope)
        if found is None:
            found = self._scopes[scope] = _Scope()
            for outer in _with_outer(scope):
                self._below.setdefault(outer, []).append(found)
        return found

    def _count(self, state: _Scope, name: str) -> str:
        state.names[name] = number = state.names.get(name, 0) + 1
        return "" if number == 1 else f"#{number}"


def origins(row: Record) -> list[str]:
    """The records of lost branches from which this one has its signals."""
    if '"from"' not in (row.result or ""):
        return []
    found = json.loads(row.result or "null")
    keys = found.get("from", []) if isinstance(found, dict) else []
    return keys if isinstance(keys, list) else []


def size_of(row: Record) -> int:
    return len(row.result or "") + len(row.error or "")


def marker(patch: str) -> str:
    return f"patch/{patch}"


def scope_of(key: str) -> str:
    return key.rpartition("/")[0]


def _with_outer(scope: str) -> Iterator[str]:
    """The branch, and its ancestors."""
    while scope:
        yield scope
        scope = scope_of(scope)


def _fitting(key: str) -> str:
    if len(key) > KEY_BYTES // 4 and (size := len(key.encode())) > KEY_BYTES:
        raise InvalidOption(
            f"the key of this call is {size:,} bytes, more than the limit of {KEY_BYTES:,}: {shown(key)}. "
            "Nest fewer parallel calls in each other, or give shorter names"
        )
    return key


def _inside(scope: str) -> str:
    return f"{scope}/" if scope else ""


def _at(place: CallPlace) -> str:
    return f"at {place.ordinal} in scope {place.scope!r}" if place.ordinal is not None else "out of order"
