"""One process of a supervisor: started, listened to, asked to drain, killed."""

import contextlib
import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from .supervisor_link import LISTENS, READY

KILL: Final = 3
NEVER: Final = math.inf

Command = Callable[[int, int], Sequence[str]]  # number of the place, descriptor of the socket -> what to run


class Child:
    def __init__(
        self, place: int, command: Command, inherited: Sequence[int], env: Mapping[str, str] | None = None
    ) -> None:
        self.place = place
        self.link, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                list(command(place, theirs.fileno())),
                stdin=subprocess.DEVNULL,
                env=env,
                pass_fds=[theirs.fileno(), *inherited],
                start_new_session=True,
            )
        except BaseException:
            self.link.close()
            raise
        finally:
            theirs.close()
        self.link.setblocking(False)
        self.listens = False
        self.ready_at: float | None = None
        self.stage = 0
        self.deadline = NEVER

    @property
    def pid(self) -> int:
        return self._process.pid

    def hear(self) -> bool:
        """Read its messages. False: it has no more."""
        try:
            said = self.link.recv(64)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.listens = self.listens or LISTENS in said
        if READY in said and self.ready_at is None:
            self.ready_at = time.monotonic()
        return bool(said)

    def order(self, how_far: int, seconds: float) -> None:
        """Pass an order on, with its time limit. A child that does not listen yet has no jobs: it is just ended."""
        if how_far <= self.stage:
            return
        self.stage = how_far
        if how_far >= KILL:
            self.kill()
            return
        self.deadline = min(self.deadline, time.monotonic() + seconds)
        with contextlib.suppress(OSError):
            self.link.send(bytes([how_far]))
        if not self.listens:
            self._process.terminate()

    def kill(self) -> None:
        self.deadline = NEVER
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)

    def exit_code(self) -> int | None:
        return self._process.poll()
