"""The server ends at a place where the owner of a run writes, and comes back. What was committed counts, what was not is
done again, and the run comes to the same end as one that nothing befell."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.crash.test_workflow_crash import LEFT, Ending, Theatre
from tests.crash.workflow_app import POINTS, TABLE, TIMINGS, Order, build
from tests.pg_versions import server_folder

from holdfast import DatabaseUnavailable
from holdfast.db import migrate
from holdfast.db.embedded import EmbeddedOptions, EmbeddedServer
from holdfast.testing import Kit


class Stage(Theatre):
    """One whose server may be gone at any time, and is started again."""

    def __init__(self, kit: Kit, flows: dict[str, Any], folder: Path, server: EmbeddedServer) -> None:
        super().__init__(kit, flows, folder)
        self._server = server

    def play(self, program: str, orders: list[Order], url: str | None = None) -> tuple[Ending, bool]:
        self._up()
        return super().play(program, orders, url)

    def look(self) -> None:
        with contextlib.suppress(DatabaseUnavailable, psycopg.OperationalError):
            super().look()

    def push(self, program: str, run: Any) -> bool:
        try:
            return super().push(program, run)
        except (DatabaseUnavailable, psycopg.OperationalError):
            self._up()
            return False

    def _up(self) -> None:
        self._server.ensure_running()
        (self.folder / "postmaster").write_text(str(self._server.pid), encoding="ascii")


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    # Short, for the path of a socket, and open to the user that the server runs as.
    place = server_folder()
    place.chmod(0o755)
    with EmbeddedServer.acquire(place / "postgres", EmbeddedOptions(durable=True)) as server:
        server.ensure_database()
        migrate.up(server.dsn())
        app, flows = build(server.dsn())
        kit = Kit(app, server.dsn(), TIMINGS)
        kit.sql(TABLE)
        folder = Path(tempfile.mkdtemp(prefix="hf-workflows-"))
        stage = Stage(kit, flows, folder, server)
        try:
            yield stage
        finally:
            server.ensure_running()
            stage.end()
            kit.close()
            shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="module")
def undisturbed(stage: Stage) -> dict[str, Ending]:
    return {program: stage.play(program, [])[0] for program in stage.flows}


def _survives(stage: Stage, undisturbed: dict[str, Ending], program: str, order: Order) -> bool:
    ending, struck = stage.play(program, [order])
    assert ending == undisturbed[program], order
    assert stage.kit.sql(LEFT) == [{"work": 0, "steps": 0, "calls": 0, "open": 0}], order
    return struck


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("program", "point"),
    [
        ("order", "record.before"),
        ("order", "transact.before"),
        ("order", "suspend.done"),
        ("saga", "settle.beside"),
        ("eras", "era.done"),
    ],
)
def test_the_server_ends_where_a_run_writes(
    stage: Stage, undisturbed: dict[str, Ending], program: str, point: str
) -> None:
    assert _survives(stage, undisturbed, program, Order(point, "server")), "nothing befell it"


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "point", [point for point in POINTS if point != "claim.after"]
)  # an idle worker is there first
@pytest.mark.parametrize("program", ["order", "saga", "fails", "eras", "plain"])
def test_the_server_ends_anywhere(
    stage: Stage, undisturbed: dict[str, Ending], program: str, point: str
) -> None:
    """At each point, the first three times that a run comes to it."""
    for nth in range(1, 4):
        if not _survives(stage, undisturbed, program, Order(point, "server", nth)):
            break
