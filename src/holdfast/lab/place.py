"""The lab's own server, in a temporary folder, and a fresh database for each scene."""

import contextlib
import os
import re
import shutil
import signal
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from holdfast.bench.server import Server, server_in
from holdfast.db.embedded import EmbeddedOptions, reset
from holdfast.db.embedded.launch import host_identity
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.lab.crew import stamp
from holdfast.lab.fork_client import ForkClient
from holdfast.settings import describe_database

_LEFT = 40  # databases
HOME = "postgres"  # where the server has its data
MARKER = "lab-of"  # a file that says on which machine and in which container the lab runs
_NAME = re.compile("holdfast-lab-([0-9]+)-[0-9A-Za-z_:]+-[a-z0-9_]{8}")  # _prefix(), and what tempfile adds
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
    for folder in Path(tempfile.gettempdir()).glob("holdfast-lab-*"):
        with contextlib.suppress(OSError, ValueError, HoldfastError):  # one that we cannot judge stays
            if _is_left(folder):
                reset(folder / HOME, force=True)
                shutil.rmtree(folder)


def _is_left(folder: Path) -> bool:
    """A lab of ours made it that could be seen from here if it ran, and it does not."""
    name = _NAME.fullmatch(folder.name)
    if name is None or folder.name.startswith(_prefix(int(name[1]))):
        return False
    found = folder.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return is_ours and (folder / MARKER).read_bytes() == _marker()


def _marker() -> bytes:
    return os.fsencode(host_identity())


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """`kill`, a service manager and a closed terminal end it as Ctrl-C does: nothing of it stays. nohup still counts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    heard = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _marked_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=_prefix(os.getpid())) as name:
        (Path(name) / MARKER).write_bytes(_marker())
        yield Path(name)


@contextlib.contextmanager
def open_place(*, durable: bool = False) -> Iterator[LabHost]:
    """`durable`: commits wait for the disk, as measurements need it."""
    refuse_database()
    sweep()
    options = EmbeddedOptions(durable=durable, settings=SETTINGS)
    with (
        _ended_by_signals(),
        _marked_folder() as folder,
        server_in(folder / HOME, options) as own,
    ):
        forks = ForkClient()
        try:
            server = Server(own.dsn("postgres"), own, copies=not durable)
            server.prepare(lambda _: None)
            yield LabHost(server, folder, forks)
        finally:
            forks.close()
