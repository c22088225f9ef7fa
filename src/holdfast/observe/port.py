"""The health port: a thread with a separate event loop and connection, so that it replies whatever the worker does."""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from .. import telemetry
from ..db.database import Database
from ..runtime.worker import Worker
from ..shape import CountedEnds, Measures
from .health import Health
from .metrics import Metrics
from .server import Server, listen
from .snapshot import Snapshots

_LOCAL = ("127.", "::1")


class HealthPort:
    """`async with HealthPort(...) as port:` replies from the start of the worker to its end."""

    def __init__(
        self,
        database: Database,
        tasks: Iterable[str],
        where: tuple[str, int] | socket.socket,
        measures: Sequence[Measures] = (),
        ends: Sequence[tuple[CountedEnds, frozenset[str]]] = (),
    ) -> None:
        """`where`: host and port, or a socket that listens already. `measures` are those of the shapes, `ends` theirs with
        the tasks that are counted."""
        self._where = where
        self._snapshots = Snapshots(database, measures)
        self._health = Health(database.settings, self._snapshots)
        self._metrics = Metrics(tasks, self._health, self._snapshots, measures, ends)
        self._server = Server(
            {
                "/livez": lambda _: self._health.live().reply(),
                "/readyz": lambda _: self._health.ready().reply(),
                "/startupz": lambda _: self._health.started().reply(),
                "/metrics": self._metrics.reply,
            }
        )
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._up = threading.Event()
        self._unsubscribe: Callable[[], None] = lambda: None

    def attach(self, worker: Worker) -> None:
        self._health.attach(worker)

    async def __aenter__(self) -> Self:
        sock = self._where if isinstance(self._where, socket.socket) else listen(*self._where)
        self._unsubscribe = telemetry.subscribe(self._on_event)
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._main(sock)), name="holdfast-health", daemon=True
        )
        self._thread.start()
        self._up.wait(5.0)  # this is short; awaiting it here could be cancelled, and leave the thread behind
        _announce(sock)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._unsubscribe()
        thread, self._thread = self._thread, None
        if thread is not None:
            if self._loop is not None and self._stopping is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._stopping.set)
            await asyncio.to_thread(thread.join, 5.0)

    def _on_event(self, event: telemetry.Event) -> None:
        self._health.on_event(event)
        self._metrics.on_event(event)

    async def _main(self, sock: socket.socket) -> None:
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        await self._server.start(sock)
        self._snapshots.start()
        self._up.set()
        await self._stopping.wait()
        await self._server.close()
        await self._snapshots.stop()


def _announce(sock: socket.socket) -> None:
    host, port = sock.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    hidden = host.startswith(_LOCAL) and "KUBERNETES_SERVICE_HOST" in os.environ
    if hidden:
        advice = "probes come from outside the pod: set HOLDFAST_HEALTH_HOST=0.0.0.0"
        telemetry.emit("health.listening", level=logging.WARNING, address=address, advice=advice)
    else:
        telemetry.emit("health.listening", address=address)
