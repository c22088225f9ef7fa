"""Alembic: our schema comes with a migration of the application's, and autogenerate leaves it alone."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from tests.guests.kinds import parts
from tests.guests.test_snippets import url as url_of

from holdfast import sql as files
from holdfast.contrib.alembic import include_name
from holdfast.db import migrate
from holdfast.db.embedded.binaries import find_binaries
from holdfast.testing import Kit

ENV = """
import os

from alembic import context
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, pool

import holdfast.contrib.alembic

metadata = MetaData()
Table("orders", metadata, Column("id", Integer, primary_key=True))
options = dict(
    target_metadata=metadata,
    include_schemas=True,
    include_name=holdfast.contrib.alembic.include_name if os.environ.get("FILTERED") else None,
)
url = os.environ["SHOP_URL"]
if context.is_offline_mode():
    context.configure(url=url, literal_binds=True, **options)
    with context.begin_transaction():
        context.run_migrations()
else:
    engine = create_engine(url, poolclass=pool.NullPool)
    with engine.connect() as connection:
        context.configure(connection=connection, **options)
        with context.begin_transaction():
            context.run_migrations()
"""

PAGE_ENV = """
import os

from alembic import context
from sqlalchemy import create_engine, pool
from sqlalchemy.orm import DeclarativeBase


class Base(DeclarativeBase):
    pass


with create_engine(os.environ["SHOP_URL"], poolclass=pool.NullPool).connect() as connection:
{configure}
    with context.begin_transaction():
        context.run_migrations()
"""

FIRST = """
from alembic import op
import sqlalchemy as sa

revision, down_revision, branch_labels, depends_on = "1", None, None, None


def upgrade() -> None:
    op.create_table("orders", sa.Column("id", sa.Integer, primary_key=True))
    op.holdfast_upgrade()


def downgrade() -> None:
    op.drop_table("orders")
"""


SECOND = """
from alembic import op

revision, down_revision, branch_labels, depends_on = "2", "1", None, None


def upgrade() -> None:
    op.holdfast_upgrade()
"""

MAKO = """revision, down_revision = ${repr(up_revision)}, ${repr(down_revision)}


def upgrade():
    ${upgrades if upgrades else 'pass'}
"""


@pytest.fixture
def empty(kit: Kit) -> str:
    """A database without our schema."""
    with psycopg.connect(kit.url, autocommit=True) as conn:
        conn.execute("DROP SCHEMA holdfast CASCADE")
    return kit.url


@pytest.fixture
def config(tmp_path: Path, empty: str, kit: Kit, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("SHOP_URL", url_of(kit).replace("postgresql:", "postgresql+psycopg:", 1))
    monkeypatch.setenv("FILTERED", "yes")
    (tmp_path / "versions").mkdir()
    (tmp_path / "env.py").write_text(dedent(ENV))
    (tmp_path / "versions" / "1_first.py").write_text(dedent(FIRST))
    (tmp_path / "script.py.mako").write_text(MAKO)
    config = Config(output_buffer=io.StringIO(), stdout=io.StringIO())
    config.set_main_option("script_location", str(tmp_path))
    config.set_main_option("path_separator", "os")
    return config


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_migration_brings_our_schema(
    config: Config, empty: str, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_URL", os.environ["SHOP_URL"].replace("+psycopg:", f"+{driver}:"))
    command.upgrade(config, "head")
    assert migrate.status(empty).pending == []
    with psycopg.connect(empty) as conn:
        assert conn.execute("SELECT to_regclass('public.orders') IS NOT NULL").fetchone() == (True,)
    command.downgrade(config, "base")
    command.upgrade(config, "head")  # our schema is there already: nothing to do
    assert migrate.status(empty).pending == []


def page(name: str) -> str:
    """The block of docs/fastapi.md that begins with this comment."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "fastapi.md").read_text(encoding="utf-8")
    blocks = re.findall(r"<!-- skip: runs inside of Alembic -->\n```python\n(.*?)```", text, re.DOTALL)
    (found,) = (block for block in blocks if block.startswith(f"# {name}"))
    return str(found)


@pytest.mark.filterwarnings("ignore:Did not recognize type")  # of ours, by SQLAlchemy
def test_the_files_of_the_page_do_it(config: Config, empty: str, tmp_path: Path) -> None:
    (tmp_path / "env.py").write_text(PAGE_ENV.format(configure=indent(page("env.py"), "    ")))
    header = (
        'from alembic import op\nrevision, down_revision, branch_labels, depends_on = "1", None, None, None\n'
    )
    (tmp_path / "versions" / "1_first.py").write_text(header + page("versions/"))
    command.upgrade(config, "head")
    assert migrate.status(empty).pending == []
    written: Any = command.revision(config, autogenerate=True)
    assert "holdfast" not in Path(written.path).read_text()


@pytest.mark.filterwarnings("ignore:Did not recognize type")  # of ours, by SQLAlchemy
def test_autogenerate_leaves_our_schema_alone(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    command.upgrade(config, "head")

    def generated() -> str:
        written: Any = command.revision(config, autogenerate=True)
        text = Path(written.path).read_text()
        Path(written.path).unlink()
        return text

    assert "holdfast" not in generated()
    monkeypatch.delenv("FILTERED")
    assert "op.drop_table('archive', schema='holdfast')" in generated()  # what the filter is for


def psql(dsn: str, script: str) -> tuple[int, str]:
    command = [str(find_binaries().bin / "psql"), "-X", "-q", "-o", "/dev/null", "--dbname", dsn]
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_offline_it_is_a_script_for_psql(config: Config, empty: str) -> None:
    command.upgrade(config, "head", sql=True)
    buffer = config.output_buffer
    assert isinstance(buffer, io.StringIO)
    script = buffer.getvalue()
    before, _, rest = script.partition("\\set ON_ERROR_STOP on\n")
    assert before.rstrip().endswith("COMMIT;")
    assert rest.rpartition("\\endif\n")[2].lstrip().startswith("BEGIN;")
    assert psql(empty, script) == (0, "")
    assert migrate.status(empty).pending == []


def test_offline_a_second_revision_applies_what_is_missing(
    config: Config, empty: str, tmp_path: Path
) -> None:
    """As after an upgrade of Holdfast: the first revision may have been run with an earlier release."""
    (tmp_path / "versions" / "2_second.py").write_text(dedent(SECOND))
    command.upgrade(config, "head", sql=True)
    buffer = config.output_buffer
    assert isinstance(buffer, io.StringIO)
    assert psql(empty, buffer.getvalue()) == (0, "")
    assert migrate.status(empty).pending == []
    with psycopg.connect(empty) as conn:
        conn.execute("DROP SCHEMA holdfast CASCADE")
        conn.execute("UPDATE alembic_version SET version_num = '1'")
    migrate.up(empty, migrations=files.migrations()[:11])
    buffer.seek(0)
    buffer.truncate()
    command.upgrade(config, "1:2", sql=True)
    assert psql(empty, buffer.getvalue()) == (0, "")
    assert migrate.status(empty).pending == []


def test_a_password_given_apart_from_the_address_is_used(empty: str) -> None:
    from sqlalchemy import create_engine

    from holdfast.contrib.alembic import address_of

    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(empty))
    with engine.connect() as conn:
        found, wanted = conninfo_to_dict(address_of(conn)), parts(empty)
    engine.dispose()
    assert (found["dbname"], found["user"], found["host"]) == (
        wanted["dbname"],
        wanted["user"],
        wanted["host"],
    )
    assert found.get("password") == (wanted["password"] or None)
    with psycopg.connect(make_conninfo(**found)) as conn:  # type: ignore[arg-type]
        assert conn.execute("SELECT current_database()").fetchone() == (wanted["dbname"],)


def test_the_filter() -> None:
    assert not include_name("holdfast", "schema", {})
    assert not include_name("work", "table", {"schema_name": "holdfast"})
    assert include_name("orders", "table", {"schema_name": None})
    assert include_name(None, "schema", {})
    assert include_name("holdfast", "table", {"schema_name": "public"})


def test_without_alembic_the_extra_is_named() -> None:
    code = "import sys; sys.modules['alembic'] = None; import holdfast.contrib.alembic"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: holdfast.contrib.alembic needs Alembic. Install it: pip install 'holdfast-pg[alembic]'"
    )
