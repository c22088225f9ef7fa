"""Holdfast: the app. The only place that builds everything else from settings, a database and registries. Code that only a
worker needs is imported when one starts."""

import contextlib
import functools
import importlib
import logging
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack
from uuid import UUID

from .db.database import Database
from .errors import ConfigurationError
from .model.clock import Clock
from .model.queue import QueueRules
from .model.release import find_release
from .observe.tracing import TraceAttempt
from .registry import Registry, Verbs
from .runtime.around import Around, AsyncHook, Hook, check_hook
from .runtime.inflight import Processes
from .runtime.middleware import Middleware
from .runtime.processes import origin
from .runtime.processes.assignment import Launch
from .runtime.record import Recorders
from .settings import Settings, database_url, load_settings
from .tasks import checks
from .tasks.found import FoundJob, job_id_of
from .tasks.group import GroupHandle, NewGroup, When
from .tasks.handle import JobHandle
from .tasks.newjob import NewJob
from .tasks.options import EnqueueOptions
from .tasks.payload import dump
from .tasks.server import check_server
from .tasks.task import aenqueue_all, enqueue_all, raw_job
from .tasks.taskset import TaskSet
from .tasks.writer import Writer

if TYPE_CHECKING:
    from .runtime.options import WorkerOptions
    from .runtime.worker import Worker
    from .shape import Shape

R = TypeVar("R")
_SPARE = 4


class Holdfast(Registry, Verbs):
    """Your jobs on your database: `app = Holdfast("postgresql://...", include=[billing, "shop.tasks"])`.

    It opens nothing: connections open at first use, per process and per event loop.
    """

    @property
    def _shapes(self) -> "Sequence[Shape]":
        from .shapes import SHAPES  # with all the code of a worker

        return SHAPES

    def __init__(
        self,
        url: str | None = None,
        *,
        include: Sequence[Registry | str] = (),
        middleware: Sequence[Middleware] = (),
        lifespan: Callable[["Holdfast"], AbstractAsyncContextManager[None]] | None = None,
        settings: Settings | None = None,
        release: str | None = None,
    ) -> None:
        super().__init__()
        checks.app_arguments(url, include, settings, release)
        self._made_in = str(sys._getframe(1).f_globals.get("__name__"))
        self._url, self._given_settings, self._given_release = url, settings, release
        # The first: the work of the others belongs to its span.
        self._middleware: tuple[Middleware, ...] = (TraceAttempt(), *middleware)
        self._around, self._lifespan = Around(), lifespan
        self._modules = [item for item in include if isinstance(item, str)]
        self._registries: list[Registry] = [self]
        self._opened: Database | None = None
        self._opening = threading.RLock()  # threads that need it first at the same moment open one
        self._writer = Writer(lambda: self.database, self._declared)
        self._bind(self._writer, "app")
        for item in include:
            if not isinstance(item, str):
                self._include(item)

    def _include(self, registry: Registry) -> None:
        if not isinstance(registry, Registry):
            kind = type(registry).__name__
            raise ConfigurationError(f"include= takes registries and module names, not {kind} {registry!r}")
        if registry not in self._registries:
            self._registries.append(registry)
            registry._bind(self._writer, "app")

    def load(self) -> None:
        """Import the modules named in `include` and add their registries. Worker and command line do this."""
        while self._modules:
            name = self._modules[0]
            try:
                module = importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
                    raise
                raise ConfigurationError(
                    f"include={name!r} cannot be imported: {error}. "
                    f"Name a module that Python finds from {sys.path[0] or '.'}"
                ) from None
            for item in vars(module).values():
                if isinstance(item, Registry) and not isinstance(item, Holdfast):
                    self._include(item)
            self._modules.pop(0)

    def _declared(self) -> dict[str, QueueRules]:
        return self.tasks.queue_rules()

    @property
    def settings(self) -> Settings:
        return self.database.settings

    @property
    def release(self) -> str:
        """The application's release: `Holdfast(release="1.4.2")`, HOLDFAST_RELEASE, or the git commit where there is one."""
        return find_release(self._given_release or self.settings.release, self._made_in)

    def _environment(self) -> dict[str, str]:
        """The environment variables that another process needs to import this app."""
        return {}

    @property
    def database(self) -> Database:
        with self._opening:
            if self._opened is None:
                settings = self._given_settings or load_settings()
                address = database_url(self._url or settings.database_url)
                self._opened = self._new_database(address, settings)
            return self._opened

    def _new_database(self, url: str, settings: Settings, clock: Clock | None = None) -> Database:
        return Database(url, settings, clock)

    @property
    def tasks(self) -> TaskSet:
        """Every task known so far, over all registries."""
        return TaskSet(self._registries, self._around)

    def around(self, hook: Hook, /, *, in_async: AsyncHook | None = None) -> Hook:
        """Put a context manager around every call of a handler, in the handler's own thread or task: `@app.around` over
        `@contextmanager def tidy() -> Iterator[None]`. The first one is outermost. `in_async` is an async context manager
        to take in its place around handlers that are `async def`."""
        check_hook(hook)
        if in_async is not None:
            check_hook(in_async, "in_async=")
        self._around = self._around.and_then(hook, in_async)
        return hook

    def enqueue_many(self, jobs: Iterable[NewJob[R]], *, conn: object = None) -> list[JobHandle[R]]:
        """Write many jobs in one transaction, all or none: `app.enqueue_many(send.job(i) for i in ids)`."""
        return enqueue_all(self._writer, jobs, conn)

    async def aenqueue_many(self, jobs: Iterable[NewJob[R]], *, conn: object = None) -> list[JobHandle[R]]:
        return await aenqueue_all(self._writer, jobs, conn)

    def enqueue_copy(self, jobs: Iterable[NewJob[Any]]) -> int:
        """Load very many jobs by COPY, all or none, and return how many: `app.enqueue_copy(send.job(i) for i in ids)`. They
        are streamed, so memory use stays constant. They cannot have an idempotency key, a replace key or follow-ups, nor an
        ordered queue; for these, and for handles, use enqueue_many."""
        return self._writer.load(jobs)

    async def aenqueue_copy(self, jobs: Iterable[NewJob[Any]]) -> int:
        """`await app.aenqueue_copy(send.job(i) for i in ids)`: see enqueue_copy()."""
        return await self._writer.aload(jobs)

    def group(
        self,
        jobs: Iterable[NewJob[Any]],
        *,
        then: NewJob[Any] | Sequence[NewJob[Any]] | None = None,
        when: When = "completed",
        conn: object = None,
    ) -> GroupHandle:
        """Write jobs, and a callback for when all have completed, or with `when="finished"` ended in any way:
        `app.group([resize.job(n) for n in pages], then=report.job())`. An empty group's callback is enqueued at once."""
        return NewGroup(jobs, then, conn, when).enqueue(self._writer, conn)

    async def agroup(
        self,
        jobs: Iterable[NewJob[Any]],
        *,
        then: NewJob[Any] | Sequence[NewJob[Any]] | None = None,
        when: When = "completed",
        conn: object = None,
    ) -> GroupHandle:
        """`await app.agroup([resize.job(n) for n in pages], then=report.job())`: see group()."""
        return await NewGroup(jobs, then, conn, when).aenqueue(self._writer, conn)

    def send(
        self, task: str, payload: Mapping[str, object], **options: Unpack[EnqueueOptions]
    ) -> JobHandle[Any]:
        """Enqueue by name, without the handler's code: `app.send("billing.send_receipt", {"order_id": 1})`."""
        new = self._raw(task, payload, options)
        return enqueue_all(self._writer, [new], new.conn)[0]

    async def asend(
        self, task: str, payload: Mapping[str, object], **options: Unpack[EnqueueOptions]
    ) -> JobHandle[Any]:
        new = self._raw(task, payload, options)
        return (await aenqueue_all(self._writer, [new], new.conn))[0]

    def _raw(self, task: str, payload: Mapping[str, object], options: Mapping[str, Any]) -> NewJob[Any]:
        known = self.tasks.definition(task)
        return raw_job(task, payload, options, known.settings if known else None)

    def job(self, job_id: UUID | str) -> FoundJob[Any] | None:
        """Returns a job by its id as a snapshot: state, progress, result, errors, cancel: `app.job(job_id)`. None: there is
        no such job, or it is finished and no longer kept. `task.get(job_id)` knows the type of the result."""
        look = self._writer.look(job_id_of(job_id))
        return None if look is None else FoundJob(look, self._writer)

    async def ajob(self, job_id: UUID | str) -> FoundJob[Any] | None:
        """`await app.ajob(job_id)`: see job()."""
        look = await self._writer.alook(job_id_of(job_id))
        return None if look is None else FoundJob(look, self._writer)

    async def run_worker(
        self, *, queues: Sequence[str] = (), concurrency: int | None = None, until_idle: bool = False
    ) -> None:
        """Run a worker in this process until it is cancelled, or with `until_idle` until nothing is due."""
        await self._serve(queues, concurrency, until_idle)

    @contextlib.asynccontextmanager
    async def worker(
        self, *, queues: Sequence[str] = (), concurrency: int | None = None
    ) -> AsyncIterator[None]:
        """A worker inside a web process: `FastAPI(lifespan=lambda _: app.worker())`, or `async with app.worker(): ...`. When
        the block ends it drains and closes the app's connections of this process."""
        from .runtime.hosted_worker import hosted

        async with self, hosted(lambda on_start: self._serve(queues, concurrency, on_start=on_start)):
            yield

    async def _serve(
        self,
        queues: Sequence[str] = (),
        concurrency: int | None = None,
        until_idle: bool = False,
        on_start: "Callable[[Worker], None]" = lambda _: None,
        health: tuple[str, int] | socket.socket | None = None,
    ) -> None:
        from .runtime.options import WorkerOptions
        from .runtime.worker import Worker
        from .shape import by_table

        if isinstance(queues, str):
            raise ConfigurationError(f"queues= takes a list of names: queues=[{queues!r}]")
        if origin.in_child:
            raise ConfigurationError(
                "a worker was started in a child process of a worker, most likely while it imported the app. "
                'Put the call under: if __name__ == "__main__":'
            )
        self.load()
        tasks = self.tasks
        tasks.check()
        for shape in self._shapes:
            shape.check_declared(tasks)
        wanted = list(dict.fromkeys(queues)) or sorted({"inbox", *tasks.queues()})
        rules = await check_server(self.database, wanted, tasks.queue_rules())
        options = WorkerOptions(
            leases={queue: self._lease(tasks, queue) for queue in wanted},
            concurrency=self.settings.concurrency if concurrency is None else concurrency,
            release=self.release,
            until_idle=until_idle,
            rules=rules,
            prunes=by_table(self._shapes, lambda shape: shape.prunes, "prune"),
            recorders=self._recorders(),
        )
        # One connection per handler's transaction, and some more for handlers' other statements (once, enqueue).
        await self.database.reserve(options.concurrency + _SPARE)
        async with contextlib.AsyncExitStack() as stack:
            attach = await self._open_port(stack, tasks, health)
            if self._lifespan is not None:
                await stack.enter_async_context(self._lifespan(self))
            processes = await self._open_processes(stack, tasks, options)
            services = [s for shape in self._shapes for s in shape.services(self.database, tasks)]
            children = functools.partial(self._children_for_suspects, stack, processes, options)
            options = replace(options, children=children)
            worker = Worker(self.database, tasks, options, self._middleware, processes, services)
            attach(worker)
            on_start(worker)
            await worker.run()

    def _recorders(self) -> Recorders:
        from .shape import by_table

        return Recorders(by_table(self._shapes, lambda shape: shape.recorders, "recorder"), dump)

    async def _open_port(
        self,
        stack: contextlib.AsyncExitStack,
        tasks: TaskSet,
        address: tuple[str, int] | socket.socket | None,
    ) -> "Callable[[Worker], None]":
        """Open the health port if one is set; it replies already while the worker starts."""
        if address is None:
            if self.settings.health_port is None:
                return lambda _: None
            address = (self.settings.health_host, self.settings.health_port)
        from .observe.port import HealthPort

        known = {name for name, _ in tasks.known()}
        measures = [shape.measures for shape in self._shapes if shape.measures is not None]
        ends = [(m.ends, frozenset(m.ends.tasks(tasks))) for m in measures if m.ends is not None]
        port = HealthPort(self.database, known, address, measures, ends)
        return (await stack.enter_async_context(port)).attach

    async def _open_processes(
        self, stack: contextlib.AsyncExitStack, tasks: TaskSet, options: "WorkerOptions"
    ) -> Processes | None:
        """Child processes for the tasks that need them. A child imports the app, so the app must be importable."""
        from .runtime.processes.pool import Pool

        wanted = [handler for handler in tasks.handlers() if handler.process]
        if not wanted:
            return None
        where = origin.find(self, self._made_in)
        if where is None:
            raise ConfigurationError(
                f"task {wanted[0].name!r} has process=True, but a child process cannot import its app: it is no global "
                "variable of a module. Write app = Holdfast(...) at the top level of a file"
            )
        here = [] if options.until_idle else [h.name for h in wanted if h.queue in options.leases]
        patient = not options.until_idle
        pool = Pool(
            self._launch(where), self.database.clock, size=options.concurrency, check=here, patient=patient
        )
        return await stack.enter_async_context(pool)

    def _children_for_suspects(
        self, stack: contextlib.AsyncExitStack, opened: Processes | None, options: "WorkerOptions"
    ) -> Processes | None:
        """Only if importing the app again is known to be harmless: a script may have effects when it is run a second
        time."""
        from .runtime.processes.pool import Pool

        if opened is not None:
            return opened
        where = origin.find(self, self._made_in)
        if where is None or where.file is not None:
            return None
        pool = Pool(self._launch(where), self.database.clock, size=options.concurrency, spare=0)
        stack.push_async_exit(pool)
        return pool

    def _launch(self, where: origin.Origin) -> Launch:
        hello = {
            "frame": "hello",
            "app": asdict(where),
            "url": self.database.dsn,
            "settings": asdict(self.settings),
            "path": sys.path,
            "level": logging.getLogger().getEffectiveLevel(),
        }
        return Launch(origin.python("holdfast.child"), hello, jobs=self.settings.process_jobs)

    def _use(self, url: str, settings: Settings) -> None:
        """Use another database than the app was created with: a child process uses its worker's."""
        self._opened = self._new_database(url, settings)
        self._writer.forget()

    def _lease(self, tasks: TaskSet, queue: str) -> float:
        """A lease belongs to the claim, so it is the longest that the settings or any task of the queue ask for."""
        asked = [h.lease for h in tasks.handlers() if h.queue == queue and h.lease is not None]
        return max([self.settings.lease, *asked])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close this process's connections; they open again at the next use."""
        if self._opened is not None:
            self._opened.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._opened is not None:
            await self._opened.aclose()
            self._opened.close()
