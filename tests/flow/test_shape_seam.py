"""The seam: a shape in a folder of its own adds all that a kind of work needs, and nothing else knows of it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import QUICK, await_until
from tests.flow.test_run import working
from tests.shapes import pings
from typer.testing import CliRunner

from holdfast import ConfigurationError, Holdfast, cli, sql
from holdfast.operate.operator import Operator
from holdfast.runtime.sweep import Sweeper
from holdfast.shape import Shape, by_table
from holdfast.shapes import SHAPES
from holdfast.store.statement import Flow
from holdfast.testing import Kit

FOLDER = Path(pings.__file__).parent


class App(Holdfast, pings.Pinging, pings.HasPings):
    _shapes = (*SHAPES, pings.SHAPE)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    folders = [*sql.shape_folders(), FOLDER]
    monkeypatch.setattr(sql, "shape_folders", lambda: folders)
    caches = (sql._pieces, sql._queries, sql.query_asking)
    for cache in caches:
        cache.cache_clear()
    app = App()
    app.ping("here")
    yield app
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def kit(app: App, holdfast_kit: Callable[..., Kit]) -> Kit:
    kit = holdfast_kit(app, replace(QUICK, heartbeat=0.4, dead_after=10.0, lease=30.0, poll=600.0))
    kit.sql(sql.schema_of("pings"))
    return kit


async def test_the_folder_of_a_shape_is_all_it_needs(app: App, akit: Kit) -> None:
    health = Operator(akit.database, "ann").doctor(only=["pings"], checks=pings.SHAPE.checks)
    assert [finding.code for finding in health.findings] == ["no_pings"]
    async with working(akit):
        await await_until(lambda: app.pings == ["here"], "the service of the shape has run")
        akit.sql("DELETE FROM holdfast.pings")
        await await_until(lambda: app.pings == ["here"], "the pulse has asked, and the service was told")
    assert Operator(akit.database, "ann").doctor(only=["pings"], checks=pings.SHAPE.checks).findings == []


async def test_what_it_wants_tidied_is_tidied(app: App, akit: Kit) -> None:
    akit.sql("INSERT INTO holdfast.pings VALUES ('old', now() - interval '8 days'), ('new', now())")
    sweeper = Sweeper(akit.database, lambda: None, prunes=pings.SHAPE.prunes)
    await sweeper.tidier.tidy_once(7, 60.0)
    await sweeper.stop()
    assert app.pings == ["new"]


def test_its_commands_are_there(kit: Kit) -> None:
    kit.sql("INSERT INTO holdfast.pings VALUES ('here', now())")
    groups = list(cli.app.registered_groups)
    try:
        cli.add_shapes([pings.SHAPE])
        said = CliRunner().invoke(cli.app, ["pings", "list", "--database-url", kit.url])
    finally:
        cli.app.registered_groups[:] = groups
    assert (said.exit_code, said.stdout) == (0, "here\n")


def test_it_is_small() -> None:
    files = [file for file in FOLDER.iterdir() if file.is_file()]
    assert sorted(file.name for file in files) == ["__init__.py", "queries.sql", "schema.sql"]
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files) < 100


def test_two_shapes_with_one_name_are_refused() -> None:
    def nothing(*_: object) -> Flow[None]:
        return
        yield

    class Both(Holdfast):
        _shapes = (*SHAPES, Shape("mine", recorders={"webhook_attempts": nothing}))

    why = r"the shapes 'webhooks' and 'mine' both have a recorder for 'webhook_attempts'"
    with pytest.raises(ConfigurationError, match=why):
        Both()._recorders()
    with pytest.raises(ConfigurationError, match="'mine' and 'yours' both have a prune for 'rows'"):
        by_table(
            [Shape("mine", prunes={"rows": nothing}), Shape("yours", prunes={"rows": nothing})],  # type: ignore[dict-item]
            lambda shape: shape.prunes,
            "prune",
        )
