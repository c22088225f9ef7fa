"""The lab's own server, in a temporary folder, and a fresh database for each scene."""

import contextlib
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from holdfast.bench.server import Server, temporary_server
from holdfast.db.embedded import EmbeddedOptions, reset
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.lab.crew import stamp
from holdfast.lab.fork_client import ForkClient
from holdfast.settings import describe_database

_LEFT = 40  # databases
HOME = "postgres"  # where temporary_server() has its data
SETTINGS = {"max_connections": "200", "autovacuum_naptime": "10s", "shared_buffers": "64MB"}


@dataclass(frozen=True, slots=True)
class LabHost:
    server: Server
    folder: Path  # for logs and notes
    forks: ForkClient
    _left: list[str] = field(default_factory=list)  # databases of scenes that are over

    def fresh(self) -> str:
        """The address of a new database with our schema."""
        return self.server.make()

    def leave(self, url: str) -> None:
        """Nobody needs it any more. To drop one takes seconds, and they go with the server: only many are dropped."""
        self._left.append(url)
        if len(self._left) > _LEFT:
            self.server.drop(self._left.pop(0))


def refuse_database(env: Mapping[str, str] | None = None) -> None:
    """A lab kills its workers and breaks its own rows: it must never find somebody's database."""
    found = describe_database(env)
    if found is not None:
        raise ConfigurationError(
            f"{found.source} names a database, and the lab uses none: it kills and freezes workers, on a server of its "
            f"own alone. Start it without: env -u {found.source.split(',')[0]} holdfast lab"
            if found.source.isupper() or "," in found.source
            else f"{found.source} names a database, and the lab uses none: it kills and freezes workers, on a server of "
            "its own alone. Start it in a folder without that file"
        )


def _prefix(pid: int) -> str:
    """Of folders of the lab that runs in this process. A pid may be another process's later, its start may not."""
    found = stamp(pid)
    return f"holdfast-lab-{pid}-{'' if found is None else found[0].replace(' ', '_')}-"


def sweep() -> None:
    """Remove what labs left that were killed with -9: their processes end by themselves, their folders stay."""
    for folder in Path(tempfile.gettempdir()).glob("holdfast-lab-*-*-*"):
        pid = folder.name.split("-")[2]
        if not pid.isdigit() or folder.name.startswith(_prefix(int(pid))):
            continue
        with contextlib.suppress(OSError, HoldfastError):  # somebody else's, or gone meanwhile
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            if (folder / HOME).exists():
                reset(folder / HOME, force=True)
            shutil.rmtree(folder)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """`kill`, a service manager and a closed terminal end it as Ctrl-C does: nothing of it stays."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def open_place(*, durable: bool = False) -> Iterator[LabHost]:
    """`durable`: commits wait for the disk, as measurements need it."""
    refuse_database()
    sweep()
    options, prefix = EmbeddedOptions(durable=durable, settings=SETTINGS), _prefix(os.getpid())
    with (
        _ended_by_signals(),
        temporary_server(options, prefix) as own,
        tempfile.TemporaryDirectory(prefix=prefix) as folder,
    ):
        forks = ForkClient()
        try:
            server = Server(own.dsn("postgres"), own, copies=not durable)
            server.prepare(lambda _: None)
            yield LabHost(server, Path(folder), forks)
        finally:
            forks.close()
