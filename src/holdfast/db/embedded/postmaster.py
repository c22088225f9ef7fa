"""Is a server running on a data folder, and stopping it.

A pid file proves nothing by itself: after `kill -9` or a container restart its number is unused or belongs to
another process. It counts only if that process is alive, no zombie, called postgres, and was started on
this data folder.

Run as a script this file is the watcher, `python -I -S postmaster.py FOLDER`: it sleeps in the kernel until
no process uses the server any more, then stops it. Without it a server would be left running when its last
user is killed. It must stay small, so this file imports a few standard modules and nothing of Holdfast.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

USERS, START, ALIVE, WATCHER, KEEP, DATA = (
    "users.lock",
    "start.lock",
    "alive.lock",
    "watcher.lock",
    "keep",
    "data",
)
STOP_SECONDS = 60.0
NAMES = ("postgres", "postmaster")


class PidFile(NamedTuple):
    """The contents of postmaster.pid; fields not written yet are empty."""

    pid: int
    port: int
    socket: str
    listen: str
    status: str


class Process(NamedTuple):
    state: str
    name: str
    argv: list[str]


def read_pid_file(data: Path) -> PidFile | None:
    """None when there is no file, or only half of its first line."""
    try:
        lines = (data / "postmaster.pid").read_text(errors="replace").split("\n")
    except FileNotFoundError:
        return None
    lines += [""] * (8 - len(lines))
    try:
        pid, port = int(lines[0]), int(lines[3] or 0)
    except ValueError:
        return None
    return PidFile(pid, port, lines[4].strip(), lines[5].strip(), lines[7].strip()) if pid > 0 else None


def find(data: Path) -> PidFile | None:
    """The server that runs on this data folder, if one does."""
    said = read_pid_file(data)
    return said if said and is_postmaster(said.pid, data) else None


def is_postmaster(pid: int, data: Path) -> bool:
    process = look(pid)
    if process is None or process.state in "ZX" or process.name not in NAMES or "-D" not in process.argv:
        return False
    folder = os.path.realpath(data)
    # A server's children carry a title in place of their arguments, so they never pass for the server.
    return any(os.path.realpath(arg) == folder for arg in process.argv[1:]) or _works_in(pid, folder)


def gone(pid: int) -> bool:
    process = look(pid)
    return process is None or process.state in "ZX"


def look(pid: int) -> Process | None:
    if not os.path.exists("/proc/self/stat"):
        return _look_with_ps(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        argv = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    name, _, rest = stat.partition("(")[2].rpartition(")")
    return Process(rest.split()[0], name, [os.fsdecode(arg) for arg in argv.split(b"\0")])


def _look_with_ps(pid: int) -> Process | None:
    answer = subprocess.run(
        ["ps", "-ww", "-o", "stat=,command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, command = answer.stdout.strip().partition(" ")
    if answer.returncode != 0 or not state:
        return None
    program, dash, folder = command.strip().partition(" -D ")
    argv = [program, "-D", folder.split(" -c ")[0]] if dash else command.split()
    return Process(state[0], os.path.basename(program), argv)


def _works_in(pid: int, folder: str) -> bool:
    """The folder may have been renamed under a running server, which keeps it as its working folder."""
    try:
        return os.path.samefile(f"/proc/{pid}/cwd", folder)
    except OSError:
        return False


def leftovers(data: Path) -> list[int]:
    """Processes of a dead server that still run a query, which blocks the next start (only seen on Linux)."""
    found = []
    folder = os.path.realpath(data)
    for entry in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if entry.isdigit() and _works_in(int(entry), folder):
            process = look(int(entry))
            if process and process.name in NAMES and process.state not in "ZX":
                found.append(int(entry))
    return found


def stop(data: Path, seconds: float = STOP_SECONDS) -> bool:
    """Stop the server and wait: fast first, then immediate if it does not react. False if it is still there."""
    for sign, patience in ((signal.SIGINT, seconds), (signal.SIGQUIT, 10.0)):
        running = find(data)
        if running is None:
            return True
        os.kill(running.pid, sign)
        deadline = time.monotonic() + patience
        while not gone(running.pid):
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
    return find(data) is None


def watch(area: Path) -> None:
    """Wait until nobody uses the server, then stop it.

    Users hold `alive` shared for as long as they live; asking for it exclusively is the wait. The decision is
    made under `start` with `users`, as everyone else makes it: `alive` is let go before, or we would hold
    what a new user needs while we want what it has.
    """
    alive, start, users, mine = (_open(area / name) for name in (ALIVE, START, USERS, WATCHER))
    if not _try_exclusive(mine):
        return
    while True:
        fcntl.flock(alive, fcntl.LOCK_EX)
        fcntl.flock(alive, fcntl.LOCK_UN)
        fcntl.flock(start, fcntl.LOCK_EX)
        if _try_exclusive(users):
            if not (area / KEEP).exists():
                stop(area / DATA)
            fcntl.flock(mine, fcntl.LOCK_UN)  # before `start`, so that the next user sees that we are gone
            return
        fcntl.flock(start, fcntl.LOCK_UN)
        time.sleep(0.05)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)


def _try_exclusive(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__":
    watch(Path(sys.argv[1]))
