"""The lab's own server, in a temporary folder, and a fresh database for each scene."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.bench.server import Server, temporary_server
from holdfast.db.embedded import EmbeddedOptions
from holdfast.errors import ConfigurationError
from holdfast.lab.fork_client import ForkClient
from holdfast.settings import describe_database

_LEFT = 40  # databases
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


@contextlib.contextmanager
def open_place(*, durable: bool = False) -> Iterator[LabHost]:
    """`durable`: commits wait for the disk, as measurements need it."""
    refuse_database()
    options = EmbeddedOptions(durable=durable, settings=SETTINGS)
    with temporary_server(options) as own, tempfile.TemporaryDirectory(prefix="holdfast-lab-") as folder:
        forks = ForkClient()
        try:
            server = Server(own.dsn("postgres"), own, copies=not durable)
            server.prepare(lambda _: None)
            yield LabHost(server, Path(folder), forks)
        finally:
            forks.close()
