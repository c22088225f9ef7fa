"""A scene per test: a database with a ledger, a folder, and workers that are all gone afterwards."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import QUICK
from tests.crash.crash_app import app
from tests.crash.process import Scene
from tests.crash.proxy import Proxy

from holdfast.testing import Kit

LEDGER = """
CREATE TABLE ledger (job_id uuid NOT NULL, generation bigint NOT NULL, fence text NOT NULL, pid int NOT NULL,
                     at timestamptz NOT NULL DEFAULT clock_timestamp())
"""


@pytest.fixture
def scene(holdfast_kit: Callable[..., Kit], tmp_path: Path) -> Iterator[Scene]:
    kit = holdfast_kit(app, QUICK)
    kit.sql(LEDGER)
    scene = Scene(kit, tmp_path)
    yield scene
    scene.end()


@pytest.fixture
def proxy(scene: Scene) -> Iterator[Proxy]:
    proxy = Proxy(scene.kit.url)
    yield proxy
    scene.end()  # clients first, so that nobody runs into the closing proxy
    proxy.close()
