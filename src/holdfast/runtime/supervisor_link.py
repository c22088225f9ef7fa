"""The link between a worker process and its supervisor: one socket, a byte at a time.

The supervisor says how far to go, not how often it was asked, so an order that reaches a worker in two ways counts once:
systemd, for one, signals every process of a service. The worker says when it listens and when it is in the registry. The
kernel closes the socket of a supervisor that is killed; the worker then drains.
"""

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Final

from .. import telemetry
from ..errors import ConfigurationError

DRAIN: Final = 1
HURRY: Final = 2
LISTENS: Final = b"l"
READY: Final = b"r"
_DIED: Final = "_HOLDFAST_DIED"


def environment_after(pid: int | None, how: str) -> dict[str, str]:
    """The environment of a worker process that replaces one that ended this way."""
    kept = {name: value for name, value in os.environ.items() if name != _DIED}
    return kept if pid is None else {**kept, _DIED: f"{pid} {how}"}


def predecessor() -> tuple[int, str] | None:
    """Pid and end of the process that this one replaces, once."""
    pid, _, how = os.environ.pop(_DIED, "").partition(" ")
    return (int(pid), how) if pid else None


class SupervisorLink:
    """The worker's end."""

    def __init__(self, descriptor: int) -> None:
        try:
            self._socket = socket.socket(fileno=descriptor)
        except OSError as error:
            raise ConfigurationError(
                f"descriptor {descriptor} is no socket of a supervisor: {error.strerror}. "
                "Only holdfast worker --processes passes one"
            ) from None
        self._socket.set_inheritable(False)  # programs that a handler starts must not keep it open

    def watch(self, obey: Callable[[int], None]) -> None:
        """Call `obey` with every order, in a separate thread: a handler that blocks the event loop must not hide it."""
        threading.Thread(target=self._main, args=[obey], name="holdfast-supervisor-link", daemon=True).start()
        self._say(LISTENS)

    def ready(self) -> None:
        self._say(READY)

    def _main(self, obey: Callable[[int], None]) -> None:
        while orders := self._read():
            for order in orders:
                obey(order)
        telemetry.emit("supervisor.gone", level=logging.WARNING)
        obey(DRAIN)

    def _read(self) -> bytes:
        try:
            return self._socket.recv(64)
        except OSError:
            return b""

    def _say(self, word: bytes) -> None:
        with contextlib.suppress(OSError):  # it is gone; the thread sees that too
            self._socket.send(word)
