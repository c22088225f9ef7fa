"""A worker in this process, from its start to a clean exit."""

import asyncio
import contextlib
import importlib
import inspect
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import thread as pools
from dataclasses import dataclass
from enum import StrEnum
from types import FrameType
from typing import Annotated

import typer

from holdfast import telemetry
from holdfast.app import Holdfast
from holdfast.cli.apps import place_of
from holdfast.cli.logs import LogFormat
from holdfast.cli.render import folded
from holdfast.distribution import install
from holdfast.errors import ConfigurationError
from holdfast.model.release import UNKNOWN, own_version
from holdfast.model.shown import shown
from holdfast.runtime.gc_tuning import tuned_gc
from holdfast.runtime.supervisor_link import SupervisorLink
from holdfast.runtime.worker import Worker
from holdfast.settings import Settings

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_FOR_HANDLERS = (
    "holdfast.app",
    "holdfast.runtime.job",
    "holdfast.tasks.",
)  # a handler's task may begin in these


class EventLoop(StrEnum):
    asyncio = "asyncio"
    uvloop = "uvloop"


def _new_loop(kind: EventLoop) -> asyncio.AbstractEventLoop:
    if kind is EventLoop.asyncio:
        return asyncio.new_event_loop()
    try:
        made: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
    except ImportError as error:
        raise ConfigurationError(f"--loop uvloop: {error}. Install it: {install('uvloop')}") from None
    return made


@dataclass(frozen=True, slots=True)
class Work:
    queues: Sequence[str] = ()
    concurrency: int | None = None
    until_idle: bool = False
    health_port: int | None = None
    health_host: str | None = None
    health_fd: int | None = None
    loop: EventLoop = EventLoop.asyncio

    def address(self, settings: Settings) -> tuple[str, int] | None:
        """Where the health port is to be, if there is to be one; options win over settings."""
        port = settings.health_port if self.health_port is None else self.health_port
        return None if port is None else (self.health_host or settings.health_host, port)

    def health(self, settings: Settings) -> tuple[str, int] | socket.socket | None:
        """The same, or the socket that the supervisor has opened already."""
        return self.address(settings) if self.health_fd is None else _inherited(self.health_fd)


def _inherited(descriptor: int) -> socket.socket:
    try:
        found = socket.socket(fileno=descriptor)
    except OSError as error:
        raise ConfigurationError(f"--health-fd {descriptor} is no socket: {error.strerror}") from None
    found.set_inheritable(False)
    return found


HealthPortOption = Annotated[
    int | None,
    typer.Option(
        min=0, max=65535, help="Probes and metrics on this port; 0: any free one.", show_default="off"
    ),
]
HealthHostOption = Annotated[
    str | None, typer.Option(help="The address of the health port.", show_default="127.0.0.1")
]


def serve(app: Holdfast, work: Work, log_format: LogFormat, supervisor: SupervisorLink | None = None) -> None:
    """Run a worker until it is asked to stop, or with `until_idle` until nothing is due. Returns after a clean drain.

    With a supervisor, that one has announced it, and may tell it to stop."""
    if supervisor is None:
        announce(app, work, log_format)
    loop = _new_loop(work.loop)
    executor = ThreadPoolExecutor(thread_name_prefix="asyncio")
    loop.set_default_executor(executor)
    asyncio.set_event_loop(loop)
    try:
        with tuned_gc():
            _run(loop, _serve(app, work, supervisor))
    finally:
        _close(loop, executor)
    _leave_stuck_threads()


def _run(loop: asyncio.AbstractEventLoop, main: Coroutine[None, None, None]) -> None:
    """Until it ends. asyncio lets a SystemExit out of the loop, whichever task raised it. The one of a task that a handler
    made fails the handler that waits for it; it does not end this worker with all of its jobs."""
    task = loop.create_task(main)
    while not task.done():
        try:
            loop.run_until_complete(task)
        except SystemExit as error:
            if task.done() or not _is_of_handler(error):
                raise
            telemetry.emit(
                "worker.exit_ignored",
                level=logging.WARNING,
                code=shown(error.code),
                advice="a task that a handler started called sys.exit(); raise an error instead",
            )


def _is_of_handler(error: SystemExit) -> bool:
    """Whether it came out of a task that is not our own. Outside of all tasks it is meant for this process."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE):
            name = str(frame.f_globals.get("__name__"))
            return not name.startswith("holdfast.") or name.startswith(_FOR_HANDLERS)
    return False


def announce(app: Holdfast, work: Work, log_format: LogFormat, processes: int = 1) -> None:
    queues = list(dict.fromkeys(work.queues)) or sorted({"inbox", *app.tasks.queues()})
    concurrency = work.concurrency or app.settings.concurrency
    place = place_of(app.database)
    if log_format is LogFormat.json:
        telemetry.emit(
            "worker.starting",
            release=app.release,
            holdfast=own_version(),
            queues=",".join(queues),
            concurrency=concurrency,
            **({"processes": processes} if processes > 1 else {}),
            database=place,
        )
    else:
        names = f"queue{'s' if len(queues) > 1 else ''} {', '.join(queues)}"
        many = f"{processes} processes, each " if processes > 1 else ""
        what = f"holdfast {own_version()}" + ("" if app.release == UNKNOWN else f", release {app.release}")
        line = f"{what}: {names}; {many}{concurrency} at a time; {place}"
        print(folded(line, 2, sys.stderr), file=sys.stderr)  # noqa: T201


async def _serve(app: Holdfast, work: Work, supervisor: SupervisorLink | None) -> None:
    stop = _Stop(asyncio.current_task())
    with stop.on_signals(), _linked(supervisor, stop):
        async with app:
            try:
                health = work.health(app.settings)
                await app._serve(work.queues, work.concurrency, work.until_idle, stop.watch, health)
            except asyncio.CancelledError:
                if not stop.asked:
                    raise


@contextlib.contextmanager
def _linked(supervisor: SupervisorLink | None, stop: "_Stop") -> Iterator[None]:
    """Hear what the supervisor says, and tell it when the worker is in the registry."""
    if supervisor is None:
        yield
        return

    def tell(event: telemetry.Event) -> None:
        if event.name == "worker.started":
            unsubscribe()  # every event costs as long as somebody listens
            supervisor.ready()

    unsubscribe = telemetry.subscribe(tell)
    supervisor.watch(stop.obey)
    try:
        yield
    finally:
        unsubscribe()


class _Stop:
    """First signal: drain. Second: drain at once. Third: the system's way. A supervisor says which of them it means.

    The handlers are Python's own, not the loop's, so that they count also while a handler blocks the loop.
    """

    def __init__(self, task: "asyncio.Task[None] | None") -> None:
        self.asked = 0
        self._signals = 0
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._worker: Worker | None = None

    def watch(self, worker: Worker) -> None:
        self._worker = worker

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._signals += 1
        if self._signals >= 2:
            for each in _SIGNALS:
                signal.signal(each, signal.SIG_DFL)
        self.obey(self._signals)

    def obey(self, how_far: int) -> None:
        """From any thread. A signal and an order of the supervisor that mean the same count once."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has stopped
            self._loop.call_soon_threadsafe(self._reach, how_far)

    def _reach(self, how_far: int) -> None:
        while self.asked < how_far:
            self.asked += 1
            self._stop()

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.stop()
        elif self._task is not None:
            self._task.cancel()  # not started yet: nothing to drain


def _close(loop: asyncio.AbstractEventLoop, executor: ThreadPoolExecutor) -> None:
    """Like asyncio.run, but without waiting for threads or tasks that ignore their cancellation."""
    try:
        if rest := asyncio.all_tasks(loop):
            for task in rest:
                task.cancel()
            loop.run_until_complete(asyncio.wait(rest, timeout=1.0))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        asyncio.set_event_loop(None)
        loop.close()


def _waits_in_pool(thread: threading.Thread) -> bool:
    """Whether it waits for work in the ThreadPoolExecutor of some library: Python ends those at its exit."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and (frame.f_code.co_filename, frame.f_code.co_name) == (
        pools.__file__,
        "_worker",
    )


def _leave_stuck_threads() -> None:
    """Python joins every thread that is no daemon before it exits; one that never ends would keep it forever."""
    deadline = time.monotonic() + 1.0
    others = [t for t in threading.enumerate() if t is not threading.current_thread() and not t.daemon]
    for thread in others:
        if not _waits_in_pool(thread):
            thread.join(max(0.0, deadline - time.monotonic()))
    stuck = [thread.name for thread in others if thread.is_alive() and not _waits_in_pool(thread)]
    if not stuck:
        return
    telemetry.emit("worker.threads_left", level=logging.WARNING, threads=", ".join(stuck))
    logging.shutdown()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(0)
