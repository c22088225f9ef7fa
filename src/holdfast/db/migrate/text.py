"""A migration file: its header, its statements, and the script that a DBA can run by hand.

The leading comment lines of a file may say, each on its own line:

    -- holdfast: expand                       code that knows the migration before this one may run on it (the usual case)
    -- holdfast: expand (needs code >= N)     the same of code that knows migration N
    -- holdfast: contract (needs code >= N)   takes away what code that does not know migration N still uses
    -- holdfast: no-transaction               for CREATE INDEX CONCURRENTLY; each statement tolerates a second run
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from holdfast.errors import ConfigurationError, MigrationFailed

# One class for all advisory locks of Holdfast, see create_queue() in schema.sql.
LOCK_KEY = "7236837, hashtext('holdfast.migrate')"

_HEADER = re.compile(r"--\s*holdfast:\s*(.*?)\s*")
_KNOWN_HEADER = re.compile(r"no-transaction|(expand|contract(?= ))(?: \(needs code >= (\d+)\))?")
_TOKEN = re.compile(
    r"""--[^\n]* | /\*.*?\*/ | '(?:[^']|'')*' | "(?:[^"]|"")*" | (\$\w*\$).*?\1 | ;""", re.VERBOSE | re.DOTALL
)
_INDEX = re.compile(
    r"^CREATE\s+(?:UNIQUE\s+)?INDEX\s+CONCURRENTLY\s+(?:IF\s+NOT\s+EXISTS\s+)?(\w+)\s+ON\b", re.IGNORECASE
)


@dataclass(frozen=True)
class Migration:
    number: int
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.number:04}_{self.name}"

    @cached_property
    def headers(self) -> frozenset[str]:
        found = set()
        for line in self.text.lstrip().splitlines():
            if not line.startswith("--"):
                break
            header = _HEADER.fullmatch(line)
            if header and not _KNOWN_HEADER.fullmatch(header[1]):
                raise MigrationFailed(
                    f"migration {self} has the header {header[1]!r} "
                    "(known: expand, expand (needs code >= N), contract (needs code >= N), no-transaction)"
                )
            if header:
                found.add(header[1])
        return frozenset(found)

    @property
    def needs_code(self) -> int:
        """The newest migration that code must know to run on a database that has this one."""
        for header in self.headers:
            found = _KNOWN_HEADER.fullmatch(header)
            if found is None or found[1] is None:
                continue
            needs = int(found[2]) if found[2] else self.number - 1
            if needs > self.number:
                raise MigrationFailed(
                    f"migration {self} says that it needs code >= {needs}, which is later than itself. "
                    f"Name {self.number} or less"
                )
            return needs
        return self.number

    @property
    def row(self) -> str:
        """The statement that notes it as applied. The column `needs_code` came with migration 2."""
        names, values = "number, name", f"{self.number}, '{self.name}'"
        if self.number > 2:
            names, values = f"{names}, needs_code", f"{values}, {self.needs_code}"
        return f"INSERT INTO holdfast.migrations ({names}) VALUES ({values})"  # noqa: S608

    @property
    def in_transaction(self) -> bool:
        return "no-transaction" not in self.headers

    @property
    def statements(self) -> list[str]:
        """The statements in order, without the comments before them."""
        return list(_statements(self.text))

    @property
    def indexes(self) -> list[str]:
        """The indexes that a no-transaction file builds; a failed build leaves an invalid one behind."""
        return [found[1] for statement in self.statements if (found := _INDEX.match(statement))]


def _statements(text: str) -> Iterator[str]:
    part = ""
    last = 0
    for token in _TOKEN.finditer(text):
        part += text[last : token.start()]
        last = token.end()
        if token[0] == ";":
            if part.strip():
                yield part.strip()
            part = ""
        elif not token[0].startswith(("--", "/*")):
            part += token[0]
    part += text[last:]
    if part.strip():
        yield part.strip()


def script(migrations: Sequence[Migration], first: int, last: int | None) -> str:
    """What `up` would do for these numbers, for psql. It stops at the first error, with nothing half done."""
    known = [m.number for m in migrations]
    last = known[-1] if last is None else last
    if first not in known or last not in known or first > last:
        raise ConfigurationError(
            f"there are no migrations {first} to {last} (this release has {known[0]} to {known[-1]})"
        )
    chosen = [m for m in migrations if first <= m.number <= last]
    head = (
        f"-- Holdfast, migrations {first} to {last}. Run with psql, as the role that is to own the schema.\n"
        "\\set ON_ERROR_STOP on\n"
        "SET client_encoding = 'UTF8';\n"
    )
    return "\n".join([head, *(_section(m) for m in chosen)])


def _section(migration: Migration) -> str:
    row = f"{migration.row};"
    title = f"-- {migration} " + "-" * (100 - len(str(migration)))
    guard = _guard(migration)
    if not migration.in_transaction:
        body = [f"{statement};" for statement in migration.statements]
        settings = _settings("SET")
        lock, unlock = f"SELECT pg_advisory_lock({LOCK_KEY});", f"SELECT pg_advisory_unlock({LOCK_KEY});"
        resets = "RESET search_path; RESET statement_timeout; RESET standard_conforming_strings;"
        return "\n".join([title, settings, lock, guard, *body, row, unlock, resets, ""])
    begin = ["BEGIN;", _settings("SET LOCAL"), f"SELECT pg_advisory_xact_lock({LOCK_KEY});", guard]
    begin.append("SET LOCAL lock_timeout = '2s';  -- when it fails on this, nothing was done: run it again")
    text = migration.text.strip()
    body = [text, row] if migration.number == 1 else [row, text]
    return "\n".join([title, *begin, "", *body, "", "COMMIT;", ""])


def _settings(verb: str) -> str:
    return (
        f"{verb} search_path = pg_catalog, pg_temp;\n"
        f"{verb} statement_timeout = 0;\n"
        f"{verb} standard_conforming_strings = on;"
    )


def _guard(migration: Migration) -> str:
    if migration.number == 1:
        wrong = "current_setting('server_encoding') <> 'UTF8'"
        message = "Holdfast needs a database with encoding UTF8"
    else:
        before = migration.number - 1
        wrong = f"(SELECT max(number) FROM holdfast.migrations) IS DISTINCT FROM {before}"  # noqa: S608
        message = f"migration {migration.number} needs a database that is at {before}"
    return f"DO $guard$ BEGIN IF {wrong} THEN RAISE EXCEPTION '{message}'; END IF; END $guard$;"
