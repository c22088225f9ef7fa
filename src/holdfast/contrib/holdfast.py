"""Another Holdfast database: `holdfast_database("postgresql://...")`. Its log gets each event once, with the same id.

A batch is one transaction there. The route names the type that an event has there: `route="{type}"` keeps its own.
"""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from ..errors import ConfigurationError
from ..transport import (
    PAUSED,
    Capabilities,
    Confirmed,
    Health,
    Outcome,
    OutMessage,
    Refused,
    RetryLater,
    Transport,
    may_send,
)

MOST_BYTES = 229_376 + 16_384  # of data, and of what stands around it
_OF_THE_DATA = ("22", "23", "54")  # classes of SQLSTATE: bad values, broken constraints, limits

# The data is taken out of the envelope by the server, so that no number changes on its way.
PUBLISH = """
SELECT array_agg(p.created ORDER BY p.n) FROM (
    SELECT q.created, row_number() OVER () AS n FROM holdfast.publish_many(
        %(types)s::text[],
        (SELECT array_agg((u.body::jsonb->'data')::text ORDER BY u.n)
         FROM unnest(%(bodies)s::text[]) WITH ORDINALITY u(body, n)),
        %(keys)s::text[], %(headers)s::text[], %(ids)s::uuid[],
        (SELECT array_agg(coalesce(substring(u.body::jsonb->>'dataschema' from ':([0-9]+)$')::int, 1) ORDER BY u.n)
         FROM unnest(%(bodies)s::text[]) WITH ORDINALITY u(body, n))) q) p
"""


def holdfast_database(url: str) -> Transport:
    """A transport to the log of another Holdfast database. The role needs the rights of a producer there."""
    return _Database(url)


def make(url: str, options: Mapping[str, str]) -> Transport:
    """For addresses: `holdfast+postgresql://user@host/database`. The options are those of PostgreSQL."""
    bare = url.removeprefix("holdfast+")
    extra = "&".join(f"{name}={value}" for name, value in options.items())
    return holdfast_database(f"{bare}?{extra}" if extra else bare)


class _Database:
    capabilities = Capabilities(
        order="key",
        in_flight="prefix",
        dedup=timedelta(days=1),  # as long as the log there is kept, which is a day at least
        max_bytes=MOST_BYTES,
        max_batch=500,
    )

    def __init__(self, url: str) -> None:
        try:
            conninfo_to_dict(url)
        except psycopg.Error:
            raise ConfigurationError("this is no address of a PostgreSQL database") from None
        self._url = url
        self._connection: psycopg.AsyncConnection[Any] | None = None

    async def open(self) -> None:
        await self.close()
        self._connection = await psycopg.AsyncConnection.connect(
            self._url, autocommit=True, connect_timeout=5, application_name="holdfast relay"
        )

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                await connection.close()

    async def publish(self, batch: Sequence[OutMessage], *, timeout: float) -> Sequence[Outcome]:
        if self._connection is None:
            return [RetryLater("the connection was lost", unknown=True)] * len(batch)
        connection = self._connection
        storing = asyncio.ensure_future(self._store(connection, batch))
        try:
            await asyncio.wait({storing}, timeout=timeout)
            if storing.done():
                return storing.result()
            return [RetryLater(f"no answer within {timeout:g} s", unknown=True)] * len(batch)
        finally:
            if not storing.done():  # cancelled, it would wait for the server to confirm that
                _cut(connection)
                await asyncio.wait({storing}, timeout=1.0)
            if storing.done() and not storing.cancelled():
                storing.exception()

    async def _store(
        self, connection: "psycopg.AsyncConnection[Any]", batch: Sequence[OutMessage]
    ) -> list[Outcome]:
        """All in one transaction; if the server refuses one, each alone, and nothing of its key after it."""
        if len(batch) == 1 and len(batch[0].body) > MOST_BYTES:
            return [Refused("too_large", f"{len(batch[0].body)} bytes, and {MOST_BYTES} may be sent")]
        if not may_send():
            return [PAUSED] * len(batch)
        try:
            return await _publish(connection, batch)
        except psycopg.errors.InsufficientPrivilege as error:
            return [RetryLater(f"forbidden: {_said(error)}")] * len(batch)
        except psycopg.Error as error:
            if (error.sqlstate or "")[:2] not in _OF_THE_DATA:
                raise
            if len(batch) == 1:
                return [Refused("malformed", f"{batch[0].destination}: {_said(error)}")]
        return await self._one_by_one(connection, batch)

    async def _one_by_one(
        self, connection: "psycopg.AsyncConnection[Any]", batch: Sequence[OutMessage]
    ) -> list[Outcome]:
        outcomes: list[Outcome] = []
        held: set[str] = set()
        for message in batch:
            if message.key in held:
                outcomes.append(RetryLater("it waits behind one that was refused", after=0.0, scope="key"))
                continue
            outcomes += await self._store(connection, [message])
            if not isinstance(outcomes[-1], Confirmed) and message.key is not None:
                held.add(message.key)
        return outcomes

    async def check(self, destinations: Iterable[str]) -> Health:
        """The database has a log, and this role may publish to it."""
        if self._connection is None:
            return Health(False, "it is not open")
        try:
            cursor = await self._connection.execute(
                "SELECT has_function_privilege(p.oid, 'EXECUTE') FROM pg_proc p "
                "WHERE p.pronamespace = to_regnamespace('holdfast') AND p.proname = 'publish_many'"
            )
            row = await cursor.fetchone()
        except psycopg.Error as error:
            return Health(False, _said(error))
        if row is None:
            return Health(False, "the database has no log of events: holdfast migrate up")
        return Health(bool(row[0]), "" if row[0] else "the role may not publish: grant it holdfast_producer")


async def _publish(connection: "psycopg.AsyncConnection[Any]", batch: Sequence[OutMessage]) -> list[Outcome]:
    headers = [
        {name: value for name, value in message.headers.items() if not name.startswith("ce-")}
        for message in batch
    ]
    cursor = await connection.execute(
        PUBLISH,
        {
            "types": [message.destination for message in batch],
            "bodies": [message.body.decode() for message in batch],
            "keys": [message.key for message in batch],
            "headers": [json.dumps(found) if found else None for found in headers],
            "ids": [message.id for message in batch],
        },
    )
    row = await cursor.fetchone()
    assert row is not None
    return [Confirmed(duplicate=not created) for created in row[0]]


def _said(error: psycopg.Error) -> str:
    return (error.diag.message_primary or str(error)).strip()


def _cut(connection: "psycopg.AsyncConnection[Any]") -> None:
    """End the connection under the client: a frozen server would not hear of it."""
    with (
        contextlib.suppress(psycopg.Error, OSError),
        socket.socket(fileno=os.dup(connection.fileno())) as end,
    ):
        end.shutdown(socket.SHUT_RDWR)
