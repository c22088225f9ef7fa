"""A Procedure is a verb as a sequence of steps; a Runner performs them, sync or async. So a verb exists once.

A Flow is a generator of statements that run in one transaction. A Procedure is a generator of steps that commit one by one:
`rows = yield from run(lambda: ...)` runs a statement or a flow, `yield from wait(0.1)` lets time pass, and
`who = yield from actor()` returns who acts. An error of a step is raised in the procedure, where it waits for that step.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar, overload

from ..db.database import Database, What
from ..model.actor import Actor, actor_of
from ..settings import Settings

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Step(Generic[T]):
    do: Callable[["Runner"], T]
    ado: Callable[["Runner"], Awaitable[T]]

    def __iter__(self) -> Generator["Step[Any]", Any, T]:
        answer: T = yield self
        return answer


Procedure = Generator[Step[Any], Any, T]


def run(make: What[T]) -> Step[T]:
    """A statement by itself, or a flow in one transaction."""
    return Step(lambda runner: runner.database.run(make), lambda runner: runner.database.arun(make))


def wait(seconds: float) -> Step[None]:
    return Step(lambda _: time.sleep(seconds), lambda _: asyncio.sleep(seconds))


def block(work: Callable[[Database], T]) -> Step[T]:
    """A call that blocks. On an event loop it is made in a thread."""
    return Step(lambda runner: work(runner.database), lambda runner: asyncio.to_thread(work, runner.database))


def actor() -> Step[Actor]:
    """Who acts, for the audit."""
    return _known(lambda runner: runner.actor)


def settings() -> Step[Settings]:
    return _known(lambda runner: runner.database.settings)


def _known(look: Callable[["Runner"], T]) -> Step[T]:
    async def alook(runner: "Runner") -> T:
        return look(runner)

    return Step(look, alook)


class Runner:
    """Runs procedures on one database for one actor, which the surface names. A plain name is a call from Python."""

    def __init__(self, database: Database | Callable[[], Database], actor: str | Actor) -> None:
        """`database` may be a function that opens it: it is called when a step needs the database."""
        self._database = database
        self.actor = actor_of(actor)

    @property
    def database(self) -> Database:
        return self._database if isinstance(self._database, Database) else self._database()

    def run(self, procedure: Procedure[T]) -> T:
        resume: Callable[[], Step[Any]] = partial(next, procedure)
        while True:
            try:
                step = resume()
            except StopIteration as end:
                value: T = end.value
                return value
            try:
                resume = partial(procedure.send, step.do(self))
            except Exception as error:  # noqa: BLE001 the procedure handles it, or raises it again
                resume = partial(procedure.throw, error)

    async def arun(self, procedure: Procedure[T]) -> T:
        resume: Callable[[], Step[Any]] = partial(next, procedure)
        while True:
            try:
                step = resume()
            except StopIteration as end:
                value: T = end.value
                return value
            try:
                resume = partial(procedure.send, await step.ado(self))
            except Exception as error:  # noqa: BLE001 as above
                resume = partial(procedure.throw, error)


class Bound(Generic[P, T]):
    """A verb of one runner. A call runs it; on an event loop, await its `arun`."""

    def __init__(self, runner: Runner, make: Callable[P, Procedure[T]]) -> None:
        self._runner = runner
        self._make = make

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._runner.run(self._make(*args, **kwargs))

    async def arun(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._runner.arun(self._make(*args, **kwargs))


class Method(Generic[P, T]):
    """A procedure as a verb of a runner's class."""

    def __init__(self, make: Callable[P, Procedure[T]]) -> None:
        self._make = make

    def procedure(self, *args: P.args, **kwargs: P.kwargs) -> Procedure[T]:
        """The verb as a plain procedure, to run it elsewhere: `Operator.pause_queue.procedure("inbox")`."""
        return self._make(*args, **kwargs)

    @overload
    def __get__(self, runner: None, owner: type) -> "Method[P, T]": ...
    @overload
    def __get__(self, runner: Runner, owner: type) -> Bound[P, T]: ...
    def __get__(self, runner: Runner | None, owner: type) -> "Method[P, T] | Bound[P, T]":
        return self if runner is None else Bound(runner, self._make)
