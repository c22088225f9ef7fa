"""Addresses as other libraries write them."""

import pytest

from holdfast import ConfigurationError
from holdfast.model.address import libpq_address


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("postgresql://u:p%40w@h:5432/d?sslmode=require", "postgresql://u:p%40w@h:5432/d?sslmode=require"),
        ("postgres://u@h/d", "postgres://u@h/d"),
        ("postgresql+psycopg://u@h/d", "postgresql://u@h/d"),
        ("postgresql+psycopg_async://u@h/d", "postgresql://u@h/d"),
        ("postgres+asyncpg://u@h/d", "postgres://u@h/d"),
        ("PostgreSQL+asyncpg://u@h/D", "postgresql://u@h/D"),
        ("postgresql+asyncpg://u@h/d?ssl=require", "postgresql://u@h/d?sslmode=require"),
        ("postgresql+asyncpg://u@/d?host=/var/run/pg", "postgresql://u@/d?host=%2Fvar%2Frun%2Fpg"),
        ("postgresql+asyncpg://h/d?prepared_statement_cache_size=0", "postgresql://h/d"),
        (
            "postgresql+psycopg://h/d?ssl=require",
            "postgresql://h/d?ssl=require",
        ),  # psycopg's own, and libpq refuses it
        ("postgresql+psycopg2://u@h/d", "postgresql://u@h/d"),
        ("postgresql+pg8000://u@h/d", "postgresql://u@h/d"),
        ("postgis://u@h/d?sslmode=require", "postgresql://u@h/d?sslmode=require"),
        ("pgsql://u@h/d", "postgresql://u@h/d"),
        ("psql://u@h/d", "postgresql://u@h/d"),
        ("timescale://u@h/d", "postgresql://u@h/d"),
        ("timescalegis://u@h/d", "postgresql://u@h/d"),
        ("postgresql_psycopg2://u@h/d", "postgresql://u@h/d"),
        ("host=h dbname=d", "host=h dbname=d"),
        ("host=h password=mysql://", "host=h password=mysql://"),
    ],
)
def test_what_libpq_reads(given: str, read: str) -> None:
    assert libpq_address(given) == read


@pytest.mark.parametrize(
    "scheme",
    ["mysql", "mysql+asyncmy", "sqlite", "postgresqlx", "postgresql+", "http", "cockroachdb"],
)
def test_another_database_is_refused_and_its_password_is_not_shown(scheme: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        libpq_address(f"{scheme}://u:secret@h/d")
    assert str(caught.value) == (
        f"the address begins with {scheme}://, which is no PostgreSQL. Holdfast keeps its jobs in PostgreSQL: "
        "write postgresql://user@host:5432/name, or embedded: for a server of its own"
    )
