"""The main program of a child process: the app's handlers, one job at a time, in the worker's own code.

The main thread has the event loop and runs the jobs. A second thread listens to the worker, and ends everything when the
worker is gone; a third one passes on progress.
"""

import asyncio
import contextlib
import ctypes
import dataclasses
import faulthandler
import io
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import FrameType
from typing import Any, NoReturn

from ... import telemetry
from ...db.database import Database
from ...model.outcome import Cancelled, Outcome
from ...model.text import describe, storable
from ..batch.call import Call
from ..execute import Executor
from ..handler import Handler, Handlers
from ..inflight import Running
from ..job import Job
from ..middleware import Middleware
from ..record import Recorders
from . import origin
from .frames import Frame, Unpacker, job_from_json, outcome_to_json, pack
from .memory import MemoryLimit, limited, used
from .process import LATE
from .reaper import kill_family

_BETWEEN_REPORTS = 0.1
_MESSAGE = 8192
_FIELDS = 100
_LEFT = 0.5  # for what a handler left in the event loop, to end
_STAY = ("holdfast",)  # whose tasks belong to no handler, though one may have been the first to need them
_IGNORED = (signal.SIGINT, signal.SIGTERM)
_PR_SET_CHILD_SUBREAPER = 36


@dataclasses.dataclass(frozen=True, slots=True)
class Loaded:
    """What the child needs of the app."""

    database: Database
    handlers: Handlers
    tasks: Sequence[str]  # that want a process
    middleware: Sequence[Middleware]
    lifespan: Callable[[], AbstractAsyncContextManager[None]]
    recorders: Recorders


class Link:
    """The child's end of the socket. Any thread may send."""

    def __init__(self, file: int) -> None:
        self._socket = socket.socket(fileno=file)
        self._socket.set_inheritable(False)
        self._lock = threading.Lock()
        self._unpacker = Unpacker()
        self._frames: list[Frame] = []
        self.is_ours = True
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """A process that the handler forks may not send."""
        self.is_ours = False
        self._socket.close()

    def send(self, frame: Frame) -> None:
        data = pack(frame)
        with self._lock:
            self._socket.sendall(data)

    def receive(self) -> Frame | None:
        """The next frame; None when the worker is gone."""
        while not self._frames:
            try:
                data = self._socket.recv(65536)
            except OSError:
                return None
            if not data:
                return None
            self._frames = list(self._unpacker.feed(data))[::-1]
        return self._frames.pop()


def run(file: int, load: Callable[[Frame], Loaded]) -> None:
    """Serve the worker at the other end of this socket until it says so, or is gone."""
    link = Link(file)
    _prepare()
    hello = link.receive()
    if hello is None:
        return
    _pass_on(link, hello["level"])
    sys.path[:] = hello["path"]
    origin.in_child = True
    inside = _Inside(link)
    inside.start()
    try:
        loaded = load(hello)
        link.send({"frame": "loaded", "tasks": list(loaded.tasks)})
        asyncio.run(inside.serve(loaded))
    except BaseException as error:
        if inside.is_ready:
            raise
        text = describe(error)
        link.send({"frame": "broken", "reason": text.summary, "trace": text.trace})
    finally:
        kill_family(os.getpid(), spare=True)  # without this process nobody finds them


def _prepare() -> None:
    faulthandler.enable()
    faulthandler.register(LATE)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # printed output must not be lost when the process dies
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    for number in _IGNORED:
        # The worker decides when a child ends. Not SIG_IGN: programs that a handler starts would inherit that.
        signal.signal(number, _ignore)
    os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals, after_in_child=_stop_ignoring)
    if sys.platform == "linux":  # processes that a program of the handler leaves behind become our children
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


_held = threading.local()


def _hold_signals() -> None:
    """A signal that comes before the fork has reset its handlers would be lost."""
    _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)


def _let_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.mask)


def _stop_ignoring() -> None:
    """A process that the handler forks can be terminated like any other; multiprocessing does that."""
    if signal.getsignal(signal.SIGTERM) is _ignore:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is _ignore:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _let_signals()


def _pass_on(link: Link, level: int) -> None:
    """Log lines and events become the worker's. An app that sets up logging by itself replaces this."""
    root = logging.getLogger()
    root.handlers[:] = [_ToWorker(link)]
    root.setLevel(level)

    def forward(event: telemetry.Event) -> None:
        if link.is_ours:
            fields = {
                storable(name, 200): _cut(value) for name, value in list(event.fields.items())[:_FIELDS]
            }
            name = storable(event.name, 200)
            link.send({"frame": "event", "name": name, "level": event.level, "fields": fields})

    telemetry._subscribers[:] = [forward]


def _cut(value: Any) -> Any:
    """The value, or the beginning of its text when it is large."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return value if len(text) <= _MESSAGE else storable(text, _MESSAGE)


class _ToWorker(logging.Handler):
    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = storable(self.format(record), _MESSAGE)
            if self._link.is_ours:
                self._link.send(
                    {"frame": "log", "logger": record.name[:200], "level": record.levelno, "text": text}
                )
            else:
                sys.stderr.write(f"{text}\n")
        except Exception:  # noqa: BLE001 as every logging handler does
            self.handleError(record)


class _Inside:
    def __init__(self, link: Link) -> None:
        self.is_ready = False
        self._link = link
        self._jobs: asyncio.Queue[Frame | None] = asyncio.Queue()
        self._running: Running | None = None
        self._worker = ""
        self._memory_limit: int | None = None
        self._is_spent = False
        self._news = threading.Event()

    def start(self) -> None:
        """Before the app is loaded, which may take long: the worker may die meanwhile."""
        for target in (self._listen, self._report):
            threading.Thread(target=target, name=f"holdfast{target.__name__}", daemon=True).start()

    async def serve(self, loaded: Loaded) -> None:
        self._loop = asyncio.get_running_loop()
        self._handlers = _Limited(loaded.handlers, self)
        executor = Executor(
            loaded.database,
            self._handlers,
            lambda: self._worker,
            loaded.middleware,
            supervised=True,
            recorders=loaded.recorders,
        )
        async with loaded.lifespan():
            self.is_ready = True
            self._link.send({"frame": "ready", "memory": used().resident})
            while (frame := await self._jobs.get()) is not None:
                await self._run(executor, loaded.database, frame)
        executor.close()
        await loaded.database.aclose()
        loaded.database.close()

    async def _run(self, executor: Executor, database: Database, frame: Frame) -> None:
        claimed = job_from_json(frame["job"])
        database.clock.advance(max(0.0, frame["offset"] - database.clock.offset))
        self._worker, self._memory_limit = frame["worker"], frame["memory_limit"]
        running = Running(claimed, now := time.monotonic(), now)
        running.on_change = self._job_changed
        self._say(running, "begun")  # not before: the loop may still be busy with tasks of an earlier job
        before = asyncio.all_tasks()
        executor.look()
        work = self._execute(executor, running)
        running.task = task = self._loop.create_task(work, name=f"job {claimed.id_text}")
        self._running = running
        await asyncio.wait([task])
        self._running = None
        await self._end_leftovers(before)
        outcome: Outcome = Cancelled("cancelled before it ran") if task.cancelled() else task.result()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the handler may have closed or replaced it
                stream.flush()
        self._say(
            running, "outcome", outcome=outcome_to_json(outcome), spent=self._is_spent, memory=used().resident
        )

    async def _execute(self, executor: Executor, running: Running) -> Outcome:
        """A job of a batch task that runs apart from others is a batch of one."""
        handler = self._handlers.find(running.claimed.task, running.claimed.version)
        if handler is None or handler.gather is None:
            return await executor.execute(running)
        call = Call([running], handler, executor)
        outcome = await executor.execute(running, call.join)
        call.came(running)
        await call.over()
        return outcome

    async def _end_leftovers(self, before: set[asyncio.Task[Any]]) -> None:
        """Cancel the tasks that the handler left in the event loop; if they do not end, this process is not used again."""
        left = [task for task in asyncio.all_tasks() - before if not _stays(task)]
        for task in left:
            task.cancel()
        if left:
            _, still = await asyncio.wait(left, timeout=_LEFT)
            self._is_spent = self._is_spent or bool(still)

    def end_fork(self) -> None:
        """A process that the handler forked ends with the handler: the event loop and the outcome are not its own."""
        if not self._link.is_ours:
            _end_fork(sys.exception())

    def _say(self, running: Running, name: str, **fields: Any) -> None:
        of = [running.claimed.id_text, running.claimed.generation]
        self._link.send({"frame": name, "of": of, **fields})

    # In other threads -----------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while (frame := self._link.receive()) is not None:
            match frame["frame"]:
                case "job":
                    self._loop.call_soon_threadsafe(self._jobs.put_nowait, frame)
                case "cancel":
                    self._loop.call_soon_threadsafe(self._cancel)
                case "end":
                    self._loop.call_soon_threadsafe(self._jobs.put_nowait, None)
        kill_family(os.getpid(), spare=True)
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)  # with everything the handler has started
        os._exit(1)

    def _cancel(self) -> None:
        if (running := self._running) is not None:
            running.interrupt("cancel")
            if running.is_async:
                running.cancel()

    def _job_changed(self, job: Job) -> None:
        """Called in the handler's thread. The worker must know that a job completes before its row is gone."""
        if job._completed and self._running is not None:
            self._say(self._running, "completing")
        self._news.set()

    def _report(self) -> None:
        while self._news.wait():
            self._news.clear()
            running = self._running
            if running is not None and running.job is not None and running.job._report is not None:
                fraction, message = running.job._report
                self._say(running, "progress", fraction=fraction, message=message)
            time.sleep(_BETWEEN_REPORTS)


class _Limited:
    """The app's handlers, each under the memory limit of the job that runs."""

    def __init__(self, handlers: Handlers, inside: _Inside) -> None:
        self._handlers = handlers
        self._inside = inside
        self._wrapped: dict[tuple[str, int], Handler | None] = {}

    def known(self) -> list[tuple[str, int]]:
        return self._handlers.known()

    def find(self, task: str, version: int) -> Handler | None:
        key = (task, version)
        if key not in self._wrapped:
            handler = self._handlers.find(task, version)
            self._wrapped[key] = None if handler is None else self._wrap(handler)
        return self._wrapped[key]

    def _wrap(self, handler: Handler) -> Handler:
        func = handler.func

        def call(*injected: Any, **arguments: Any) -> Any:
            try:
                with limited(self._inside._memory_limit):
                    return func(*injected, **arguments)
            except (MemoryError, MemoryLimit):
                self._inside._is_spent = True  # it may be half done, in an unknown state
                raise
            finally:
                self._inside.end_fork()

        async def acall(*injected: Any, **arguments: Any) -> Any:
            try:
                with limited(self._inside._memory_limit):
                    return await func(*injected, **arguments)
            except (MemoryError, MemoryLimit):
                self._inside._is_spent = True
                raise
            finally:
                self._inside.end_fork()

        return dataclasses.replace(handler, func=acall if handler.is_async else call)


def _stays(task: asyncio.Task[Any]) -> bool:
    frame = getattr(task.get_coro(), "cr_frame", None)
    return frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _STAY


def _end_fork(error: BaseException | None) -> NoReturn:
    if isinstance(error, SystemExit):
        os._exit(error.code if isinstance(error.code, int) else int(error.code is not None))
    if error is not None:
        traceback.print_exception(error)
    os._exit(0 if error is None else 1)
