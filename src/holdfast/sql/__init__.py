"""The SQL text: schema.sql (the whole truth), queries/*.sql (named statements), migrations/NNNN_*.sql.

A shape has its part of the schema in `schema.sql` in its own folder, which stands where schema.sql says
`-- with shape: name`. Its statements are in `queries.sql`, and any other `.sql` file, beside it.

A query file holds statements, each opened by `-- name: verb` and a line that says what it is for. What several statements
have in common is a `-- part: name`, and stands where a line says `-- with part: name`. A part may have another part in it.

A statement with the line `-- anywhere` runs on the user's connection too, under a search_path that is not ours, where an
unqualified name may be somebody else's code. So the schema of every function, type and operator in it is put before its
name here. What cannot be written with a schema must not stand in it: `CASE x WHEN y`, `IN`, `BETWEEN`, `nullif` and `LIKE`
look up an operator too.
"""

import functools
import re
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable

_OPEN = re.compile(r"^-- (name|part): (\w+)$", re.MULTILINE)
_QUEUE = re.compile(r"[a-z][a-z0-9_]{0,39}")
_WORK = re.compile(r"\bholdfast\.work\b")
_WITH = re.compile(r"^-- with part: (\w+)$", re.MULTILINE)
_SHAPE = re.compile(r"^-- with shape: (\w+)$", re.MULTILINE)
_PARAMETER = re.compile(r"\$(\d+)")
_COMMENT = re.compile(r"^--[^\n]*\n", re.MULTILINE)
_ANYWHERE = "-- anywhere\n"
_CALLED = "array_agg|array_fill|bool_and|cardinality|count|json_agg|json_build_array|make_interval|unnest"
_FUNCTION = rf"(?<![.\w])({_CALLED})(?=\()"
_TYPE = r"(?<=::)(float8|jsonb|text|timestamptz|uuid)\b"  # int, bigint, boolean and interval are words of the grammar
_OPERATOR = r"(?<=\s)(=(?! EXCLUDED\.)|<>|<=|<|\+|\|\|)(?=\s)"  # but for an assignment
_NAMES = re.compile(rf"--[^\n]*|'[^']*'|{_FUNCTION}|{_TYPE}|{_OPERATOR}")


@functools.cache
def shape_folders() -> list[Traversable]:
    """The folders of the shapes, by name."""
    shapes = files(__name__.rpartition(".")[0]) / "shapes"
    return sorted((folder for folder in shapes.iterdir() if folder.is_dir()), key=lambda folder: folder.name)


def query_files() -> list[Traversable]:
    """Every file with statements: the engine's, then the shapes'."""
    own = sorted((files(__name__) / "queries").iterdir(), key=lambda f: f.name)
    found = [file for file in own if file.name.endswith(".sql")]
    for folder in shape_folders():
        beside = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
        found += [file for file in beside if file.name != "schema.sql"]
    return found


@functools.cache
def _pieces() -> dict[str, dict[str, str]]:
    """By kind (name or part) and name."""
    found: dict[str, dict[str, str]] = {"name": {}, "part": {}}
    for file in query_files():
        pieces = _OPEN.split(file.read_text(encoding="utf-8"))
        for kind, name, text in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
            if name in found[kind]:
                raise ValueError(f"the {kind} {name!r} is there twice")
            found[kind][name] = text.strip().rstrip(";")
    return found


@functools.cache
def _queries() -> dict[str, str]:
    plain = _pieces()["part"]
    parts = {name: _WITH.sub(lambda m: plain[m[1]], text) for name, text in plain.items()}
    whole = {name: _WITH.sub(lambda m: parts[m[1]], text) for name, text in _pieces()["name"].items()}
    return {name: qualified(text) if text.startswith(_ANYWHERE) else text for name, text in whole.items()}


def qualified(text: str) -> str:
    """The same with pg_catalog before each name of a function, type or operator."""

    def whole(found: re.Match[str]) -> str:
        function, kind, operator = found.groups()
        if operator:
            return f"OPERATOR(pg_catalog.{operator})"
        return f"pg_catalog.{function or kind}" if function or kind else found[0]

    return _NAMES.sub(whole, text)


@functools.cache
def runs_anywhere(name: str) -> bool:
    """Whether the named statement is safe under any search_path."""
    return _queries().get(name, "").startswith(_ANYWHERE)


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


@functools.cache
def query_asking(name: str, params: int, questions: tuple[tuple[str, int], ...]) -> str:
    """The same with the answers to questions as further columns. Each is the name of a part with its number of parameters,
    which come after the statement's own."""
    text = query(name)
    columns = []
    for part, own in questions:
        numbered = functools.partial(_renumbered, params)
        columns.append(",\n" + _PARAMETER.sub(numbered, _COMMENT.sub("", _pieces()["part"][part])))
        params += own
    return text.replace("\n-- with questions", "".join(columns))


def _renumbered(before: int, found: re.Match[str]) -> str:
    return f"${int(found[1]) + before}"


def query_names() -> list[str]:
    return sorted(_queries())


def schema() -> str:
    """The whole schema: the engine's, with the parts of the shapes in their places."""
    whole = (files(__name__) / "schema.sql").read_text(encoding="utf-8")
    return _SHAPE.sub(lambda m: schema_of(m[1]).rstrip(), whole)


def schema_of(shape: str) -> str:
    """The part of one shape."""
    (folder,) = (folder for folder in shape_folders() if folder.name == shape)
    return (folder / "schema.sql").read_text(encoding="utf-8")


_LIMITED = """    GRANT EXECUTE ON FUNCTION holdfast.enqueue, holdfast.enqueue_many, holdfast.enqueue_group TO {role};
    INSERT INTO holdfast.producers (role, queue) VALUES ('{role}', '{queue}') ON CONFLICT DO NOTHING;
"""


def roles(names: Mapping[str, str], limited: Mapping[str, str]) -> str:
    """The script that makes the roles; `limited`: queue -> the role that may enqueue there only. Names need no quotes."""
    users = [names[name] for name in names if name not in ("owner", "migrator")]
    values = {
        **names,
        "names": ", ".join(f"'{name}'" for name in (*names.values(), *limited.values())),
        "all_users": ", ".join([*users, *limited.values()]),
        "limited": "".join(_LIMITED.format(role=role, queue=queue) for queue, role in limited.items()),
    }
    text = (files(__name__) / "roles.sql").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], text)


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
