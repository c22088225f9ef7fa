"""What the demos have in common: processes that are started, killed and stopped, and an end that comes by itself."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from holdfast import HoldfastError


def worker(app: str) -> list[str]:
    """The command of a worker at default settings."""
    return [sys.executable, "-m", "holdfast", "worker", app]


LIMIT = 240.0  # seconds until a demo gives up: it takes one, unless the machine has much else to do


class TimeUpError(HoldfastError):
    """The demo ends by itself, whatever happens."""


def unfinished() -> str:
    """In place of a verdict: what is not done yet is not lost."""
    return f"NOT FINISHED within {LIMIT:g} s, so nothing is judged: this machine has much else to do. Try it again."


class Fleet:
    """The processes of a demo, by the names that it gives them. Each has a log file of its name."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._told: set[str] = set()  # to leave

    def start(self, name: str, command: Sequence[str]) -> None:
        """A second start under one name continues its log."""
        with (self._logs / f"{name}.log").open("ab") as log:
            # A session of its own: Ctrl-C is for the demo, which then stops its processes in good order.
            self._processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def pids(self) -> dict[int, str]:
        return {process.pid: name for name, process in self._processes.items()}

    def kill(self, pid: int) -> None:
        process = self._processes[self.pids()[pid]]
        process.kill()
        process.wait()

    def tell(self, name: str, *, by_signal: bool) -> None:
        """It is told to leave: by SIGTERM, or in another way."""
        self._told.add(name)
        if by_signal:
            self._processes[name].terminate()

    def state(self, name: str) -> str:
        code = self._processes[name].poll()
        if code is None:
            return "alive"
        if code == 0 and name in self._told:
            return "left"
        return "killed" if code == -signal.SIGKILL else f"ended with {code}"

    def check(self) -> None:
        """Nobody ends by itself."""
        for name in self._processes:
            if (state := self.state(name)) not in ("alive", "killed", "left"):
                tail = (self._logs / f"{name}.log").read_text(errors="replace").splitlines()[-12:]
                raise HoldfastError(
                    "\n".join([f"{name} {state}. The end of {self._logs}/{name}.log:", *tail])
                )

    def stop(self, patience: float) -> None:
        """SIGTERM lets a worker finish its jobs; SIGKILL is for one that takes too long."""
        running = [process for process in self._processes.values() if process.poll() is None]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + patience
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def time_up(number: int, frame: FrameType | None) -> NoReturn:
        raise TimeUpError(f"not done within {seconds:g} s")

    signal.signal(signal.SIGALRM, time_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
