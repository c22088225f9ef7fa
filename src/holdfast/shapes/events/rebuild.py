"""A rebuild: the same function builds a projection's tables again beside the live ones, and then they are swapped.

The subscription NAME@VERSION reads the log from its start, or from where a seed ends, and writes to tables of the same names
in a separate schema, which comes first on the search_path of its transactions. When it is within a batch of the live one,
one transaction locks both positions, applies what is missing, and lets the new tables take the place of the old ones.
"""

import asyncio
import contextlib
import logging
from typing import Any

from ... import failpoints, telemetry
from ...db.database import Database
from ...db.faults import Forbidden, LockTimeout
from ...errors import LeaseLost
from ...model.text import storable
from ...store.statement import Flow
from . import store
from .apply import Apply
from .calling import Broken, Call, FunctionFailed
from .event import Event
from .project import Failed, Project, check_beside, divided
from .runner import BATCH_BYTES
from .store import Build, Held, Owned, Page

BATCH = 5000
LOCK_TIMEOUT = "1s"  # how long others may wait behind the swap
_PAUSE = 0.05


class Builder:
    """One running rebuild. It has the protocol of a Runner."""

    def __init__(self, database: Database, apply: Apply, owned: Owned, lease: float) -> None:
        self._database = database
        self._fn = apply
        self.owned = owned
        self._lease = lease
        self._project: Project | None = None
        self._waits = False  # for a lock
        self.left = asyncio.Event()  # it was asked to stop at the end of its batch
        self.moved = 0
        self.failed = False

    def is_behind(self, last: int) -> bool:
        """It is never done before the swap."""
        return not self.stuck

    async def leave(self) -> None:
        """End it when its batch is committed."""
        self.left.set()

    async def rest(self, seconds: float) -> None:
        """Unless it was asked to stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.left.wait()

    @property
    def stuck(self) -> bool:
        """It waits because an event failed, or for a lock."""
        return self.failed or self._waits or (self._project is not None and self._project.stuck)

    async def run(self) -> None:
        owned = self.owned
        build = await self._database.arun(lambda: store.build_of(owned.name))
        if build is None:
            return
        project = self._project = Project(self._database, self._fn, owned, self._lease, build.shadow, BATCH)
        try:
            while not self.left.is_set() and not await self._step(build, project):
                continue
        except LeaseLost:
            return

    async def _step(self, build: Build, project: Project) -> bool:
        """One batch, or the swap. True: swapped."""
        owned = self.owned
        live = await self._database.arun(lambda: store.live_position(build.projection))
        if live is None:
            raise LeaseLost
        is_near = live - owned.position <= BATCH and not project.stuck
        if is_near and await self._swap(build, project):
            return True
        page = await self._database.arun(lambda: self._read(project.batch, None))
        if page.position == owned.position:
            await self.rest(_PAUSE)
            return False
        if await project.take(page):
            self.moved += page.position - owned.position
            if build.rate is not None:
                await self.rest((page.position - owned.position) / build.rate)
            owned.position, owned.seq = page.position, page.seq
            self.failed = False
            failpoints.point("rebuild.batch")
        elif project.delay > 0:
            await self.rest(project.delay)
        return False

    def _read(self, most: int, until: int | None) -> Any:
        owned = self.owned
        return store.read_events(
            owned.position, owned.seq, most, patterns=owned.patterns, most_bytes=BATCH_BYTES, until=until
        )

    async def _swap(self, build: Build, project: Project) -> bool:
        swap = _Swap(self._database, self._fn, self.owned, build, await project.parked())
        try:
            await swap.run()
        except (_TooFar, FunctionFailed):  # the function failed: found and treated like in any other batch
            self._waits = False
            return False
        except LockTimeout as error:
            self._waits = True
            await self._say(f"the swap waits for a lock: {error}")
            await self.rest(_PAUSE * 10)
            return False
        except (Broken, Forbidden) as error:
            what = storable(f"the tables cannot be swapped: {error}", 2000)
            await self._database.arun(lambda: store.stop_shard(self.owned, what))
            telemetry.emit(
                "projection.stopped", level=logging.ERROR, subscription=self.owned.name, error=what
            )
            raise LeaseLost from error
        self._waits = False
        telemetry.emit(
            "projection.swapped",
            subscription=build.projection,
            version=build.version,
            position=swap.target,
            old=build.old,
        )
        return True

    async def _say(self, what: str) -> None:
        await self._database.arun(lambda: store.note_trouble(self.owned, storable(what, 2000)))


class _TooFar(Exception):
    """The live projection is more than a batch ahead."""


class _Swap:
    """Both positions are locked, the shadow catches up with the live tables, and replaces them."""

    def __init__(
        self, database: Database, apply: Apply, owned: Owned, build: Build, parked: set[str]
    ) -> None:
        self._database = database
        self._fn = apply
        self._owned = owned
        self._build = build
        self._parked = parked
        self._behind: Failed = []
        self._seq = owned.seq
        self.target = owned.position

    async def run(self) -> None:
        await Call(self._database, self._fn, self._first, self._finish, read=self._read).run()

    def _first(self) -> Flow[Held | None]:
        owned, build = self._owned, self._build
        yield from store.wait_for_locks(LOCK_TIMEOUT)
        live = yield from store.lock_positions(build.projection)  # in order of name, as all do
        held = yield from store.hold(owned)
        if live is None or held is None:
            return None
        self.target = max(live.position, owned.position)
        yield from store.enter_shadow(build.shadow)
        failpoints.point("rebuild.locked")
        return held

    def _read(self) -> Flow[list[Event[Any]]]:
        """Events that the live projection has applied and the shadow has not."""
        owned, found = self._owned, list[Event[Any]]()
        position, seq = owned.position, owned.seq
        while position < self.target:
            if self.target - owned.position > 2 * BATCH:
                raise _TooFar
            page: Page = yield from store.read_events(
                position, seq, BATCH, patterns=owned.patterns, until=self.target
            )
            rows, behind = divided(page.events, self._parked)
            self._behind += behind
            found += self._loaded(rows)
            position, seq = page.position, page.seq
        self._seq = seq
        return found

    def _loaded(self, rows: Any) -> list[Event[Any]]:
        try:
            return [self._fn.converter.event(row, self._owned.era, replay=True) for row in rows]
        except BaseException as error:
            raise FunctionFailed(error) from error

    def _finish(self) -> Flow[bool]:
        yield from check_beside(self._build.shadow)
        if self._behind:
            yield from store.note_failures(self._owned, self._behind)
        why = yield from store.swap_projection(self._owned.name, self.target, self._seq)
        if why is not None:
            raise Broken(why)
        failpoints.point("rebuild.swapped")
        return True
