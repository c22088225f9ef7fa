"""Addresses of databases as other libraries write them, in the form that libpq reads."""

import re
from urllib.parse import parse_qsl, quote, urlencode

from ..errors import ConfigurationError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+._-]*)://")
_POSTGRES = re.compile(r"postgres(?:ql)?(?:\+[a-z0-9_]+)?")  # SQLAlchemy names the driver behind a plus
# What DATABASE_URL of Django projects may say, by dj-database-url and django-environ: PostgreSQL, and a backend for it.
_DJANGO = re.compile(r"postgis|pgsql|psql|timescale|timescalegis|postgres(?:ql)?_psycopg2?")
_ASYNCPG_NAMES = {"ssl": "sslmode", "database": "dbname"}
# They say how asyncpg or SQLAlchemy caches statements and connections, and nothing about the server.
_NOT_ABOUT_THE_SERVER = {
    "command_timeout",
    "max_cacheable_statement_size",
    "max_cached_statement_lifetime",
    "prepared_statement_cache_size",
    "statement_cache_size",
}


def libpq_address(url: str) -> str:
    """`postgresql+asyncpg://h/d?ssl=require` as `postgresql://h/d?sslmode=require`. A scheme that is not PostgreSQL's is
    refused; a text that is no url (`host=... dbname=...`) is returned as it is."""
    found = _SCHEME.match(url)
    if found is None:
        return url
    scheme = found[1].lower()
    if _DJANGO.fullmatch(scheme):
        scheme = "postgresql"
    if not _POSTGRES.fullmatch(scheme):
        raise ConfigurationError(
            f"the address begins with {found[1]}://, which is no PostgreSQL. Holdfast keeps its jobs in PostgreSQL: "
            "write postgresql://user@host:5432/name, or embedded: for a server of its own"
        )
    base, _, driver = scheme.partition("+")
    rest = url[found.end() :]
    return f"{base}://{_asyncpg_options(rest) if driver == 'asyncpg' else rest}"


def _asyncpg_options(rest: str) -> str:
    where, mark, query = rest.partition("?")
    if not mark:
        return rest
    pairs = parse_qsl(query, keep_blank_values=True)
    kept = [
        (_ASYNCPG_NAMES.get(name, name), value) for name, value in pairs if name not in _NOT_ABOUT_THE_SERVER
    ]
    return f"{where}?{urlencode(kept, quote_via=quote)}" if kept else where
