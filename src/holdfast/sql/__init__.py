"""The SQL text: schema.sql (the whole truth), queries/*.sql (named statements), migrations/NNNN_*.sql.

A query file holds statements, each opened by `-- name: verb` and a line that says what it is for.
"""

import functools
import re
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@functools.cache
def _queries() -> dict[str, str]:
    found: dict[str, str] = {}
    for file in sorted((files(__name__) / "queries").iterdir(), key=lambda f: f.name):
        if not file.name.endswith(".sql"):
            continue
        parts = _NAME.split(file.read_text(encoding="utf-8"))
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            if name in found:
                raise ValueError(f"the query {name!r} is named twice")
            found[name] = text.strip().rstrip(";")
    return found


def query(name: str) -> str:
    """The text of one named statement."""
    return _queries()[name]


def query_names() -> list[str]:
    return sorted(_queries())


def schema() -> str:
    return (files(__name__) / "schema.sql").read_text(encoding="utf-8")


def expected_catalog() -> str:
    """The schema as the catalogs of real servers show it, as JSON; written by scripts/catalog.py."""
    return (files(__name__) / "catalog.json").read_text(encoding="utf-8")


def migrations() -> list[tuple[int, str, str]]:
    """(number, name, text) of every migration, in order."""
    found = []
    for file in (files(__name__) / "migrations").iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name)
        if match:
            found.append((int(match[1]), match[2], file.read_text(encoding="utf-8")))
    return sorted(found)
