"""One process's hold on the embedded server.

The first hold starts the server, the last one to be released stops it. Killed processes release theirs
too, because holds are file locks (see locks).
"""

import atexit
import os
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import psycopg
from psycopg import errors as pg_errors
from psycopg import sql

from holdfast.db.embedded import postmaster
from holdfast.db.embedded.launch import (
    SUPERUSER,
    EmbeddedOptions,
    answers,
    connection_url,
    data_version,
    ensure_started,
    ensure_watcher,
)
from holdfast.db.embedded.locks import Hold, start_lock
from holdfast.db.embedded.owner import shell_as
from holdfast.db.embedded.place import ServerPaths, prepare
from holdfast.errors import EmbeddedError


class EmbeddedServer:
    """A running embedded server, for as long as this is not released."""

    def __init__(self, place: ServerPaths, options: EmbeddedOptions, hold: Hold) -> None:
        self._place = place
        self._options = options
        self._hold: Hold | None = hold
        self._creator = os.getpid()

    @classmethod
    def acquire(cls, path: Path, options: EmbeddedOptions | None = None) -> Self:
        """Make the server if there is none, start it if it does not run, and count as one of its users."""
        options = options or EmbeddedOptions()
        place = prepare(path)
        try:
            with start_lock(place.area):
                hold = Hold(place.area)
                try:
                    ensure_started(place, options, hold.look_for_others)
                    ensure_watcher(place)
                except BaseException:
                    hold.close()
                    raise
        except FileNotFoundError as error:
            raise EmbeddedError(f"Somebody removed {place.area} while the server was starting.") from error
        return cls(place, options, hold)

    def ensure_running(self) -> None:
        """Start the server again if it died. Cheap when it runs."""
        if self._hold is None or self._creator != os.getpid():
            raise EmbeddedError(
                "This hold on the embedded server is released, or belongs to the parent process."
            )
        running = postmaster.find(self._place.data)
        if running and answers(self._place):
            return
        with start_lock(self._place.area):
            ensure_started(self._place, self._options, self._hold.look_for_others)

    def dsn(self, database: str = "holdfast") -> str:
        """A libpq URL over the socket. The database need not exist yet."""
        return connection_url(self._place, database)

    def tcp_dsn(self, database: str = "holdfast") -> str:
        """The same over 127.0.0.1 with the password, when the options asked for TCP."""
        said = postmaster.read_pid_file(self._place.data)
        if not said or not said.listen:
            raise EmbeddedError("The embedded server runs without TCP: EmbeddedOptions(tcp=True).")
        word = self._place.password.read_text().strip()
        return f"postgresql://{SUPERUSER}:{word}@127.0.0.1:{said.port}/{quote(database, safe='')}"

    def ensure_database(self, name: str = "holdfast") -> None:
        """Create the database unless it exists. Safe to race."""
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            if connection.execute("SELECT FROM pg_database WHERE datname = %s", [name]).rowcount:
                return
            # template1 cannot be copied while anybody is connected to it; template0 takes no connections.
            create = sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name))
            with suppress(pg_errors.DuplicateDatabase, pg_errors.UniqueViolation):
                connection.execute(create)

    def release(self) -> None:
        """Release it; the last user stops the server. Safe to call twice; does nothing in a forked child."""
        hold, self._hold = self._hold, None
        if hold is None or self._creator != os.getpid():
            return
        try:
            with start_lock(self._place.area):
                last = hold.is_last() and not self._place.keep.exists()
                if last and not postmaster.stop(self._place.data):
                    raise EmbeddedError(f"The embedded server in {self._place.home} does not stop.")
        except FileNotFoundError:
            pass  # somebody removed the folder; the server notices that by itself
        finally:
            hold.close()

    def keep_running(self) -> None:
        """Leave the server running after its last user, until it is stopped by name."""
        with start_lock(self._place.area):
            shell_as(self._place.owner, 'umask 077; : > "$1"', self._place.keep)

    @property
    def path(self) -> Path:
        return self._place.home

    @property
    def version(self) -> int:
        """PostgreSQL's major version."""
        return data_version(self._place)

    @property
    def pid(self) -> int | None:
        """The server's process; None when it died, or runs in another container."""
        running = postmaster.find(self._place.data)
        return running.pid if running else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


_shared: dict[Path, EmbeddedServer] = {}
_shared_lock = threading.Lock()


def shared(path: Path, options: EmbeddedOptions | None = None) -> EmbeddedServer:
    """This process's one hold on the server in `path`, released when the process ends."""
    key = Path(path).expanduser().resolve()
    with _shared_lock:
        held = _shared.get(key)
        if held is None or held._hold is None:
            held = _shared[key] = EmbeddedServer.acquire(path, options)
        else:
            held.ensure_running()
        return held


def _release_all() -> None:
    """A stop that Ctrl-C cuts off is ended by the watcher."""
    for held in list(_shared.values()):
        with suppress(EmbeddedError, OSError, KeyboardInterrupt):
            held.release()


def _forget_in_child() -> None:
    global _shared_lock  # noqa: PLW0603 - another thread may have held it when the process forked
    _shared_lock = threading.Lock()
    _shared.clear()


atexit.register(_release_all)
os.register_at_fork(after_in_child=_forget_in_child)
