"""The pytest plugin, found by its entry point. Nothing is started before a test asks for it."""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..app import Holdfast
    from ..settings import Settings
    from .kit import Kit
    from .servers import TestServer


@pytest.fixture(scope="session")
def holdfast_server(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[TestServer]":
    """The server of this run. Workers of a parallel run share it; the last one out stops it."""
    from .servers import TestServer

    # Not below pytest's own folder: as root that is closed to the user the server runs as.
    base = tmp_path_factory.getbasetemp()
    root = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    name = hashlib.sha256(str(root).encode()).hexdigest()[:12]
    binaries = os.environ.get("HOLDFAST_TEST_PG_BIN")
    server = TestServer(
        Path(tempfile.gettempdir()) / f"holdfast-test-{name}", Path(binaries) if binaries else None
    )
    yield server
    server.close()


@pytest.fixture
def holdfast_url(holdfast_server: "TestServer") -> Iterator[str]:
    """A fresh, migrated database, dropped after the test."""
    name = holdfast_server.clone()
    yield holdfast_server.url(name)
    holdfast_server.drop(name)


@pytest.fixture
def holdfast_kit(holdfast_url: str) -> "Iterator[Callable[..., Kit]]":
    """`kit = holdfast_kit(app)` puts an app on this test's database."""
    from .kit import Kit

    kits: list[Kit] = []

    def make(app: "Holdfast", settings: "Settings | None" = None, **_: Any) -> Kit:
        kits.append(Kit(app, holdfast_url, settings))
        return kits[-1]

    yield make
    for kit in kits:
        kit.close()
