"""The SQL text: schema.sql (the whole truth), queries/*.sql (named statements), migrations/NNNN_*.sql.

A query file holds statements, each opened by `-- name: verb` and a line that says what it is for. What several statements
have in common is a `-- part: name`, and stands where a line says `-- with part: name`.
"""

import functools
import re
from importlib.resources import files

_OPEN = re.compile(r"^-- (name|part): (\w+)$", re.MULTILINE)
_QUEUE = re.compile(r"[a-z][a-z0-9_]{0,39}")
_WORK = re.compile(r"\bholdfast\.work\b")
_WITH = re.compile(r"^-- with part: (\w+)$", re.MULTILINE)


@functools.cache
def _queries() -> dict[str, str]:
    found: dict[str, dict[str, str]] = {"name": {}, "part": {}}
    for file in sorted((files(__name__) / "queries").iterdir(), key=lambda f: f.name):
        if not file.name.endswith(".sql"):
            continue
        pieces = _OPEN.split(file.read_text(encoding="utf-8"))
        for kind, name, text in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
            if name in found[kind]:
                raise ValueError(f"the {kind} {name!r} is there twice")
            found[kind][name] = text.strip().rstrip(";")
    parts = found["part"]
    return {name: _WITH.sub(lambda m: parts[m[1]], text) for name, text in found["name"].items()}


def query(name: str) -> str:
    """The text of one named statement."""
    return _queries()[name]


@functools.lru_cache(maxsize=4096)
def query_in(name: str, queue: str) -> str:
    """The same on the queue's own table instead of the table of all queues: a plan that knows of no partitions is made in
    half the time, and one that is kept locks and opens no other queue."""
    if not _QUEUE.fullmatch(queue):
        raise ValueError(f"{queue!r} is no name of a queue")
    relation = queue if queue in ("inbox", "outbox") else f"queue_{queue}"
    return _WORK.sub(f"holdfast.{relation}", _queries()[name])


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
