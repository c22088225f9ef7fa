"""The lab's worker processes. It signals no process but those that it started: each is known by pid and start time."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase

from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.lab.fork_client import ForkClient
from holdfast.lab.notes import FOLDER

MOST_WORKERS = 12
_PATIENCE = 10.0  # seconds until a killed process is gone


def stamp(pid: int) -> tuple[str, str] | None:
    """When the process began, and its state (T: stopped, Z: dead); None: there is none of this pid."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return _stamp_by_ps(pid) if sys.platform == "darwin" else None
    words = text.rpartition(")")[2].split()
    return words[19], words[0]


def _stamp_by_ps(pid: int) -> tuple[str, str] | None:
    asked = subprocess.run(
        ["ps", "-o", "state=,lstart=", "-p", str(pid)],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"TZ": "UTC", "LC_ALL": "C"},  # the same for everybody
    )
    state, _, began = asked.stdout.strip().partition(" ")
    return (began.strip(), state[:1]) if state else None


@dataclass(slots=True)
class Member:
    """One worker process."""

    name: str
    pid: int
    began: str
    code: Callable[[], int | None] = lambda: None  # how it ended

    @property
    def state(self) -> str:
        """running, frozen, left, killed, or how else it ended."""
        code = self.code()
        if code is not None:
            return "left" if code == 0 else "killed" if code == -signal.SIGKILL else f"ended with {code}"
        found = stamp(self.pid)
        if found is None or found[0] != self.began or found[1] == "Z":
            return "gone"
        return "frozen" if found[1] in "Tt" else "running"

    @property
    def is_alive(self) -> bool:
        return self.state in ("running", "frozen")

    def signal(self, number: int) -> None:
        """To this very process: a pid may belong to somebody else by now."""
        found = stamp(self.pid)
        if found is None or found[0] != self.began:
            raise HoldfastError(f"worker {self.name} (pid {self.pid}) is gone, and this pid is not the lab's")
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        deadline = time.monotonic() + _PATIENCE
        while self.is_alive and time.monotonic() < deadline:
            time.sleep(0.005)

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def wake(self) -> None:
        self.signal(signal.SIGCONT)

    def drain(self) -> None:
        """As a deploy does: SIGTERM, and SIGCONT for one that is frozen."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)


class Crew:
    """The workers of one scene, named A, B, C in the order in which they came."""

    def __init__(self, forks: ForkClient, folder: Path, scene: str, url: str) -> None:
        self.folder = folder
        self._nursery = forks
        self._scene = scene
        self._url = url
        self.members: dict[str, Member] = {}

    def start(self, settings: Mapping[str, object], **more: str) -> Member:
        """A worker with these settings. `more` are variables for the scene's own code."""
        if sum(member.is_alive for member in self.members.values()) >= MOST_WORKERS:
            raise ConfigurationError(
                f"{MOST_WORKERS} workers are the most that a scene has. Let one leave first"
            )
        name = _name(len(self.members))
        environment = {FOLDER: str(self.folder), "HOLDFAST_DATABASE_URL": self._url, **more}
        environment |= {f"HOLDFAST_{key.upper()}": f"{value}" for key, value in settings.items()}
        pid = self._nursery.start(self._scene, environment, self.folder / f"{name}.log")
        found = stamp(pid)
        if found is None:
            raise HoldfastError(f"worker {name} ended at once: {self.log(name)[-500:]}")
        self.members[name] = Member(name, pid, found[0], lambda: self._nursery.code(pid))
        return self.members[name]

    def member(self, name: str) -> Member:
        if name not in self.members:
            raise ConfigurationError(
                f"there is no worker {name!r} (there are: {', '.join(self.members) or 'none'})"
            )
        return self.members[name]

    def by_pid(self, pid: int) -> Member | None:
        return next((member for member in self.members.values() if member.pid == pid), None)

    @property
    def alive(self) -> list[Member]:
        return [member for member in self.members.values() if member.is_alive]

    def log(self, name: str) -> str:
        file = self.folder / f"{name}.log"
        return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""

    def end(self) -> None:
        """Whatever happens, no process of the lab is left."""
        for member in self.alive:
            with contextlib.suppress(HoldfastError, ProcessLookupError):
                member.kill()


def _name(number: int) -> str:
    """A to Z, then A2 and so on."""
    turn, letter = divmod(number, len(ascii_uppercase))
    return ascii_uppercase[letter] + (str(turn + 1) if turn else "")
