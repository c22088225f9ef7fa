"""`app.contracts`: check, store and describe the event types of an app."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from ....db.database import Database
from ....errors import ConfigurationError
from ....operate.procedure import Procedure, Runner, actor, run
from ....settings import default_actor
from ....store.audit import audit
from ....store.statement import Flow
from ....tasks.payload import shown
from ....tasks.taskset import TaskSet
from .. import declare
from ..steering import run_on
from ..store import contracts as store
from . import asyncapi
from .catalog import FILE, by_version, declared, new_ones, read_file
from .check import Verdict, verdicts

Against = Literal["database", "file"]


def check(against: Against, file: str | os.PathLike[str]) -> Procedure[list[Verdict]]:
    if against == "database":
        stored = yield from run(store.event_types)
        return verdicts(declared(), by_version(stored), "the database")
    if against != "file":
        raise ConfigurationError(f'against must be "database" or "file", not {shown(against)}')
    return verdicts(declared(), by_version(read_file(file)), str(file))


def store_new(release: str | None, conn: object) -> Procedure[int]:
    code = declared()
    who = yield from actor()

    def flow() -> Flow[int]:
        fresh = yield from not_stored()
        if not fresh:
            return 0
        written = yield from store.store_event_types(fresh, release)
        if written < len(fresh):  # another process has just written some of them: are they the same?
            yield from not_stored()
        which = {"events": ", ".join(f"{c.name} {c.version}" for c in fresh)[:2000], "release": release}
        yield from audit(who, "contracts store", which, written)
        return written

    def not_stored() -> Flow[list[store.Contract]]:
        known = by_version((yield from store.event_types()))
        return list(new_ones(known, code.values(), "the database"))

    return (yield from run_on(conn, "store", flow))


class Contracts:
    """The event types that the code declares, and whether their versions are compatible."""

    def __init__(self, database: Callable[[], Database], tasks: Callable[[], TaskSet]) -> None:
        self._runner = Runner(database, default_actor())
        self._tasks = tasks

    def check(self, against: Against = "database", file: str | os.PathLike[str] = FILE) -> list[Verdict]:
        """A verdict for every two versions that meet, and for every version that is not what it was: of the classes that
        are declared, and of what the database or the file has. Those that fail are not `compatible`, and say why."""
        return self._runner.run(check(against, file))

    async def acheck(
        self, against: Against = "database", file: str | os.PathLike[str] = FILE
    ) -> list[Verdict]:
        return await self._runner.arun(check(against, file))

    def store(self, *, release: str | None = None, conn: object = None) -> int:
        """Store the versions that the database lacks, all or none; returns how many. Raises ContractChanged if it has one
        that differs: a version never changes."""
        return self._runner.run(store_new(release, conn))

    async def astore(self, *, release: str | None = None, conn: object = None) -> int:
        return await self._runner.arun(store_new(release, conn))

    def asyncapi(self, *, title: str = "Events", version: str = "1.0.0") -> dict[str, Any]:
        """What is published, and who subscribes, as an AsyncAPI 3.0 document. `title` and `version` are the
        application's."""
        subscriptions = declare.declared(self._tasks())
        return asyncapi.document(declared().values(), subscriptions, title=title, version=version)


class HasContracts:
    """`app.contracts`."""

    if TYPE_CHECKING:

        @property
        def database(self) -> Database: ...

        @property
        def tasks(self) -> TaskSet: ...

        def load(self) -> None: ...

    @property
    def contracts(self) -> Contracts:
        """The event types that this app's modules declare, and whether their versions go together."""
        self.load()
        return Contracts(lambda: self.database, lambda: self.tasks)
