"""Rebuilds of projections: begin one, watch it, abandon it, drop the old tables."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from ...db.database import Database
from ...errors import ConfigurationError, EventsGone
from ...model.actor import Actor
from ...operate.procedure import Procedure, actor, block, run
from ...store.audit import audit
from ...store.statement import Flow
from . import store
from .lookups import find, turn
from .procedures import Subscriptions
from .steering import check_removed
from .store import Build, Progress, Summary


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A rebuild that was begun."""

    name: str  # of its subscription: NAME@VERSION
    projection: str
    _verbs: Subscriptions

    def progress(self) -> tuple[int, int]:
        """Events that were read, and their total. Equal: it is done, or was abandoned."""
        return _fraction(self._verbs.run(progress(self.projection)))

    async def aprogress(self) -> tuple[int, int]:
        return _fraction(await self._verbs.arun(progress(self.projection)))

    def cancel(self) -> None:
        """Abandon it. The live tables stay as they are."""
        self._verbs.run(cancel(self.projection))

    async def acancel(self) -> None:
        await self._verbs.arun(cancel(self.projection))


def _fraction(found: Progress | None) -> tuple[int, int]:
    if found is None:
        return (0, 0)
    total = max(found.live, found.position) - found.since
    return found.position - found.since, max(total, 1)


def schema_of(prefix: str, name: str) -> str:
    """The schema of a projection's new or old tables."""
    whole = f"holdfast_{prefix}_{name}"
    return whole if len(whole) <= 63 else f"{whole[:54]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _name_of(name: str, version: int) -> str:
    """Of the subscription that builds: as long as a name may be."""
    whole = f"{name}@{version}"
    if len(whole) <= 200:
        return whole
    return f"{name[:180]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}@{version}"


def start(
    name: str,
    tables: Sequence[str],
    patterns: Sequence[str],
    version: int,
    seed: str | None = None,
    since: int | None = None,
    rate: float | None = None,
) -> Procedure[str]:
    """Make the shadow and the subscription that fills it; returns its name. ConfigurationError names what prevents it."""
    if not tables:
        raise ConfigurationError(f"{name} does not say which tables it writes. Declare them: tables=[...]")
    if (seed is None) != (since is None):
        raise ConfigurationError(
            "seed and since go together: a schema, and the position that it holds all events up to"
        )
    who = yield from actor()
    yield from find(name)
    last = yield from turn()
    build = Build(name, version, schema_of("new", name), schema_of("old", name), since or 0, rate)
    begun = _name_of(name, version)

    def work(database: Database) -> None:  # under the search_path of the role, which the function has too
        database.transact(lambda _: None, lambda _: _make(begun, build, last, tables, patterns, seed, who))

    yield from block(work)
    which = {"projection": name, "version": version, "since": build.since}
    yield from run(lambda: audit(who, "projection rebuild", which, 1))
    return begun


def _check_log(since: int | None, last: int = 0) -> Flow[None]:
    """The log has all events after it, and keeps them to the end of this transaction."""
    first = yield from store.hold_log_start()
    if since is None and first > 0:
        raise EventsGone(
            f"the log begins after position {first}, so it cannot be read from the start. Give a seed: a schema with a "
            "copy of the tables, and the position that it holds all events up to"
        )
    if since is not None and not first <= since <= last:
        raise EventsGone(
            f"position {since} is not in the log, which has {first} to {last}. Choose one of these"
        )


def _make(
    begun: str,
    build: Build,
    last: int,
    tables: Sequence[str],
    patterns: Sequence[str],
    seed: str | None,
    who: Actor,
) -> Flow[bool]:
    name = build.projection
    yield from _check_log(None if seed is None else build.since, last)
    found = yield from store.find_tables(tables)
    if missing := [table for table, oid in found.items() if oid is None]:
        raise ConfigurationError(f"there is no table {missing[0]}, which {name} declares")
    oids = [oid for oid in found.values() if oid is not None]
    if not (yield from store.add_build(begun, build, oids, who.name, patterns)):
        raise ConfigurationError(
            f"{name} is being rebuilt already. To give it up: holdfast projection cancel {name}"
        )
    why = yield from store.rebuild_obstacle(oids)
    if why is not None:
        raise ConfigurationError(
            f"{name} cannot be rebuilt beside its live tables: {why}, which would stay with the old table"
        )
    if (yield from store.schema_exists(build.old)):
        raise ConfigurationError(
            f"the tables before the last rebuild of {name} are still there, in schema {build.old}. "
            f"First drop them: holdfast projection drop {name}"
        )
    yield from store.make_shadow(oids, build.shadow, build.old)
    if seed is not None:
        why = yield from store.seed_shadow(oids, build.shadow, seed)
        if why is not None:
            raise ConfigurationError(f"the seed does not fit: {why}")
    return True


def progress(name: str) -> Procedure[Progress | None]:
    """The progress of a projection's rebuild; None: there is none."""
    return (yield from run(lambda: store.build_progress(name)))


def was_swapped(name: str) -> Procedure[bool]:
    """Whether a rebuild that is no longer in progress was completed: then old tables are kept. Otherwise: abandoned."""
    return (yield from run(lambda: store.schema_exists(schema_of("old", name))))


def cancel(name: str) -> Procedure[int]:
    """Abandon the rebuild of a projection; returns how many there were."""
    who = yield from actor()

    def flow() -> Flow[int]:
        given_up = yield from store.cancel_build(name)
        if given_up:
            yield from audit(who, "projection cancel", {"projection": name}, given_up)
        return given_up

    given_up: int = yield from run(flow)
    if not given_up:
        yield from find(name)
    return given_up


def drop_old(name: str) -> Procedure[list[str]]:
    """Drop the tables that the last rebuild has replaced; returns their names."""
    who = yield from actor()
    gone: list[str] = yield from run(lambda: _drop_old(name, who))
    if not gone:
        yield from find(name)
    return gone


def _drop_old(name: str, who: Actor) -> Flow[list[str]]:
    gone = yield from store.drop_old_tables(schema_of("old", name))
    if gone:
        yield from audit(who, "projection drop", {"projection": name, "tables": gone}, len(gone))
    return gone


def forget(name: str) -> Procedure[list[str]]:
    """Forget a projection that no code declares any more, abandon its rebuild and drop the tables that its last rebuild has
    replaced; returns their names. All of it or, where it is refused, nothing."""
    who = yield from actor()
    yield from summaries(name)

    def flow() -> Flow[list[str]]:
        removed = yield from store.remove(name, with_build=True)
        check_removed(name, removed)
        yield from audit(who, "remove_subscription", {"subscription": name}, removed.rows)
        if given_up := (yield from store.cancel_build(name)):
            yield from audit(who, "projection cancel", {"projection": name}, given_up)
        return (yield from _drop_old(name, who))

    return (yield from run(flow))


def summaries(name: str | None = None) -> Procedure[list[Summary]]:
    """Every projection, or the one of this name."""
    yield from turn()
    found: list[Summary] = yield from run(lambda: store.list_projections(name))
    if name is not None and not found:
        yield from find(name)
        raise ConfigurationError(f"{name} is no projection")
    return found


def restart(name: str, tables: Sequence[str], version: int) -> Procedure[int]:
    """Empty its tables and begin before the first event, in one transaction; returns how many shards it has."""
    if not tables:
        raise ConfigurationError(
            f"{name} does not say which tables it writes, so they cannot be emptied, and every event would count twice. "
            "Declare them: tables=[...]"
        )
    who = yield from actor()
    yield from summaries(name)

    def flow(_: object) -> Flow[bool]:
        yield from _check_log(None)
        found = yield from store.find_tables(tables)
        if missing := [table for table, oid in found.items() if oid is None]:
            raise ConfigurationError(f"there is no table {missing[0]}, which {name} declares")
        known = [oid for oid in found.values() if oid is not None]
        yield from store.restart_projection(name, known, version)
        return True

    yield from block(lambda database: database.transact(lambda _: None, flow))
    yield from run(lambda: audit(who, "projection reset", {"projection": name}, 1))
    return len((yield from find(name)))
