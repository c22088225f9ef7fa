"""What the command line does with a server it does not use: status, stop, remove."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from holdfast.db.embedded import postmaster
from holdfast.db.embedded.launch import connection_url, data_version
from holdfast.db.embedded.locks import LockFile, count_users, start_lock
from holdfast.db.embedded.owner import shell_as
from holdfast.db.embedded.place import LOCKS, POINTER, ServerPaths, locate
from holdfast.errors import EmbeddedError


@dataclass(frozen=True)
class EmbeddedStatus:
    path: Path
    state: Literal["stopped", "running"]
    exists: bool = False
    pid: int | None = None
    version: int | None = None
    users: int | None = None  # processes that hold it, where the system reports it
    kept: bool = False  # runs until it is stopped by name
    data: Path | None = None
    log: Path | None = None
    dsn: str | None = None


def status(path: Path) -> EmbeddedStatus:
    """The current state. Takes no lock, starts nothing, changes nothing."""
    place = locate(path)
    if place is None:
        return EmbeddedStatus(Path(path).absolute(), "stopped")
    running = postmaster.find(place.data)
    return EmbeddedStatus(
        path=place.home,
        state="running" if running else "stopped",
        exists=place.data.exists(),
        pid=running.pid if running else None,
        version=data_version(place) if place.data.exists() else None,
        users=count_users(place.area),
        kept=place.keep.exists(),
        data=place.data,
        log=place.log,
        dsn=connection_url(place, "holdfast") if running else None,
    )


def stop(path: Path, force: bool = False) -> bool:
    """Stop the server; False if it was not running. With `force` also while processes use it."""
    place = locate(path)
    if place is None:
        return False
    with start_lock(place.area):
        return _stop(place, force)


def reset(path: Path, force: bool = False) -> bool:
    """Stop the server and remove everything it stored; False if there was nothing."""
    place = locate(path)
    if place is None:
        return False
    with start_lock(place.area):
        _stop(place, force)
        names = ("data", "socket", "log", "log.1", "host", "password", *LOCKS)
        shell_as(place.owner, 'cd "$1"; shift; rm -rf -- data.new.* "$@"', place.area, *names)
    if place.area != place.home:
        (place.home / POINTER).unlink(missing_ok=True)
    for folder in {place.socket, place.area, place.home}:
        with suppress(OSError):
            folder.rmdir()
    return True


def _stop(place: ServerPaths, force: bool) -> bool:
    shell_as(place.owner, 'rm -f "$1"', place.keep)
    users = LockFile(place.area / postmaster.USERS)
    try:
        if not users.exclusive() and not force:
            count = count_users(place.area)
            raise EmbeddedError(
                f"The embedded server in {place.home} is in use by {count or 'other'} "
                f"process{'' if count == 1 else 'es'}. It stops when the last one ends; --force stops it now."
            )
        running = postmaster.find(place.data)
        if running and not postmaster.stop(place.data):
            raise EmbeddedError(f"The embedded server in {place.home} (process {running.pid}) does not stop.")
        return running is not None
    finally:
        users.close()
