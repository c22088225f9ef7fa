"""Passes on what children emit, in a separate thread: a slow log handler or subscriber must not delay a time limit."""

import logging
import threading
from collections import deque
from collections.abc import Callable

from ... import telemetry

ROOM = 5000  # events that wait for their subscribers; beyond that they are dropped and counted


class Emitter:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._taken = 0
        self._emitted = 0
        self._dropped = 0
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def emit_later(self, emit: Callable[[], None]) -> None:
        """Call this in the emitter's thread."""
        with self._changed:
            if len(self._waiting) >= ROOM or self._is_closed:
                self._dropped += 1
                return
            self._waiting.append(emit)
            self._taken += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="holdfast-emitter", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, seconds: float) -> None:
        """Wait until subscribers got everything taken so far, within a limit."""
        with self._changed:
            last = self._taken
            self._changed.wait_for(lambda: self._emitted >= last, seconds)

    def close(self, seconds: float) -> None:
        """Emit what is left, within the time that remains."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(seconds)

    def _main(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._dropped or self._is_closed)
                if not self._waiting and not self._dropped:
                    return
                emit = self._waiting.popleft() if self._waiting else self._emit_dropped
            try:
                emit()
            except Exception:  # noqa: BLE001 the next one must get it too
                telemetry.log.warning("an event of a child process could not be passed on", exc_info=True)
            with self._changed:
                self._emitted += emit != self._emit_dropped
                self._changed.notify_all()

    def _emit_dropped(self) -> None:
        with self._changed:
            count, self._dropped = self._dropped, 0
        telemetry.emit("process.dropped", level=logging.WARNING, count=count)
