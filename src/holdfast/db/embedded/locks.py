"""Which processes use the server, by file locks: the kernel drops them when a process dies, however it dies.

    start    exclusive and short: around every start, stop and decision
    users    shared by each user for its life; a user that can lock it exclusively is the last one
    alive    the same again, for the watcher to wait on (see postmaster.watch)
    watcher  held by the watcher

`users` is only ever asked for under `start` and without waiting, so the two cannot block each other. Locks
belong to an open file, and a forked child shares its parent's: the child closes its copies at once, or it
would keep the parent's hold after the parent is gone, and its own exit would never find itself the last one.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.db.embedded import postmaster
from holdfast.errors import EmbeddedError

WAIT_SECONDS = 180.0

_open_fds: set[int] = set()


def _close_in_child() -> None:
    for fd in _open_fds:
        with suppress(OSError):
            os.close(fd)
    _open_fds.clear()


os.register_at_fork(after_in_child=_close_in_child)


class LockFile:
    """One open lock file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        _open_fds.add(self.fd)

    def exclusive(self) -> bool:
        return self._flock(fcntl.LOCK_EX | fcntl.LOCK_NB)

    def shared(self) -> bool:
        return self._flock(fcntl.LOCK_SH)

    def is_current(self) -> bool:
        """False after a reset took the file away while we waited for it."""
        try:
            there, ours = os.stat(self.path), os.fstat(self.fd)
        except FileNotFoundError:
            return False
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def close(self) -> None:
        if self.fd in _open_fds:
            _open_fds.discard(self.fd)
            os.close(self.fd)

    def _flock(self, how: int) -> bool:
        try:
            fcntl.flock(self.fd, how)
        except BlockingIOError:
            return False
        except OSError as error:
            raise EmbeddedError(
                f"The file system of {self.path} has no working file locks ({error.strerror}). "
                "Use a local disk."
            ) from error
        return True


@contextmanager
def start_lock(area: Path, seconds: float = WAIT_SECONDS) -> Iterator[None]:
    """Alone to start, stop or count. The lock file must exist."""
    deadline = time.monotonic() + seconds
    while True:
        lock = LockFile(area / postmaster.START)
        try:
            while not lock.exclusive():
                if time.monotonic() > deadline:
                    raise EmbeddedError(
                        f"Another process has been starting or stopping the embedded server in {area} "
                        f"for {seconds:.0f} seconds."
                    )
                time.sleep(0.01)
            if lock.is_current():
                yield
                return
        finally:
            lock.close()


class Hold:
    """This process counted as a user of the server. Made and ended under the start lock."""

    def __init__(self, area: Path) -> None:
        self._users = LockFile(area / postmaster.USERS)
        self._alive = LockFile(area / postmaster.ALIVE)
        self.others = not self._users.exclusive()
        self._users.shared()
        self._alive.shared()

    def look_for_others(self) -> bool:
        """Asking drops our own shared lock for a moment, which nobody can see under the start lock."""
        self.others = not self._users.exclusive()
        self._users.shared()
        return self.others

    def is_last(self) -> bool:
        return self._users.exclusive()

    def close(self) -> None:
        self._users.close()
        self._alive.close()


def count_users(area: Path) -> int | None:
    """How many hold the users lock, where the system reports it (Linux). Takes no lock."""
    try:
        inode = (area / postmaster.USERS).stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    return sum(" READ " in line and f":{inode} " in line and "->" not in line for line in lines)
