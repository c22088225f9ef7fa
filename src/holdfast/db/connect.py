"""How our own connections are opened, and their settings."""

import re
import select
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from ..model.clock import Clock
from ..settings import Settings

Configuration = tuple[str | None, str, bool, int, str]
AnyConnection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]

# READ COMMITTED whatever the role's default is: a claim in a stricter one would only fail. Never `off` for
# synchronous_commit: a claim lost in a crash would issue its generation twice. Custom plans: a generic plan of a
# partitioned table is planned for every queue at once. But claims and settles name the queue's own table and run for ever:
# their plans are kept, because planning them each time took 1.5 of the 8 microseconds that each costs per job.
# The engine's own sessions also never scan a whole table where
# an index will do, nor sort what an index has in order: no or old statistics make both look cheap. Compiling such plans
# would take longer than running them. ISO dates, whatever the role's default: a driver reads no others.
#
# No other schema is on the search_path: its functions would run with our rights. A handler's connection gets the role's
# own path back (RESET). This statement still runs under that one, so it names the schema of everything, operators too.
#
# It first returns whether there is a pooler: the server process differs from the one we connected to.
# Then all of it applies to this transaction only, because the next one may meet another server process, and this one may go
# to another client. Nothing is prepared there, and each transaction sets its isolation itself.
#
# Its last columns are the settings as they were before: for a new connection, what RESET ALL restores.
CONFIGURE = """
SELECT s.pooled,
       pg_catalog.set_config('datestyle', 'ISO', s.pooled),
       pg_catalog.set_config('array_nulls', 'on', s.pooled),
       pg_catalog.set_config('default_transaction_isolation', 'read committed', s.pooled),
       pg_catalog.set_config('plan_cache_mode', $5, s.pooled),
       pg_catalog.set_config('synchronous_commit',
                             CASE WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'off'
                                  THEN 'on' ELSE pg_catalog.current_setting('synchronous_commit') END, s.pooled),
       pg_catalog.set_config('statement_timeout',
                             coalesce($1, pg_catalog.current_setting('statement_timeout')), s.pooled),
       pg_catalog.set_config('idle_in_transaction_session_timeout',
                             coalesce($1, pg_catalog.current_setting('idle_in_transaction_session_timeout')), s.pooled),
       pg_catalog.set_config('holdfast.clock_offset', $2, s.pooled),
       pg_catalog.set_config('enable_seqscan',
                             CASE WHEN $3::boolean THEN 'off'
                                  ELSE pg_catalog.current_setting('enable_seqscan') END, s.pooled),
       pg_catalog.set_config('enable_bitmapscan',
                             CASE WHEN $3::boolean THEN 'off'
                                  ELSE pg_catalog.current_setting('enable_bitmapscan') END, s.pooled),
       pg_catalog.set_config('jit', CASE WHEN $3::boolean THEN 'off' ELSE pg_catalog.current_setting('jit') END, s.pooled),
       pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', s.pooled),
       s.before
FROM (SELECT pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.<>) $4::int AS pooled, ARRAY[BEFORE] AS before OFFSET 0) AS s
"""

# The columns after that, in order: the settings as they are now.
CONFIGURED = tuple(re.findall(r"set_config\('([\w.]+)'", CONFIGURE))
CONFIGURE = CONFIGURE.replace(
    "BEFORE", ", ".join(f"coalesce(pg_catalog.current_setting('{name}', true), '')" for name in CONFIGURED)
)


def configured(values: Sequence[str], before: Sequence[str]) -> str:
    """The same settings again, after a RESET ALL, as plain commands, which are cheaper than computing them again. Settings
    that are as they were `before` are left out, except how a commit waits: a server may change its own default meanwhile."""
    known = zip(CONFIGURED, values, before, strict=True)
    others = ((n, v) for n, v, b in known if n != "search_path" and (v != b or n == "synchronous_commit"))
    return "; ".join(f"SET {n} = {sql.Literal(v).as_string()}" for n, v in others)


# A utility statement looks up no names.
PIN = "SET search_path = pg_catalog, pg_temp"
PIN_LOCAL = "SET LOCAL search_path = pg_catalog, pg_temp"
UNPIN = "RESET search_path"

# For a handler's transaction with a timeout, in milliseconds: nothing in it outlasts the attempt by long. If the role's
# own limit is lower, that one stays. It runs under the role's search_path.
LIMIT = """
SELECT pg_catalog.set_config(l.name, least(l.now, %s::bigint)::pg_catalog.text, true)
FROM (SELECT n.name, CASE WHEN pg_catalog.current_setting(n.name) OPERATOR(pg_catalog.<>) '0' THEN
             (extract(epoch FROM pg_catalog.current_setting(n.name)::interval) OPERATOR(pg_catalog.*) 1000)::bigint
             END AS now
      FROM (VALUES ('statement_timeout'), ('idle_in_transaction_session_timeout')) AS n(name)) AS l
"""


def connect_arguments(settings: Settings, name: str) -> dict[str, Any]:
    """Arguments that notice a half-open connection within about 15 seconds."""
    return {
        "autocommit": True,
        "connect_timeout": max(2, round(settings.connect_timeout)),
        "application_name": name,
        "client_encoding": "UTF8",
        "keepalives": 1,
        "keepalives_idle": 5,
        "keepalives_interval": 3,
        "keepalives_count": 3,
        "tcp_user_timeout": 15_000,
    }


def configuration(
    conn: AnyConnection,
    clock: Clock,
    statement_timeout: float | None,
    *,
    engine: bool,
    keep_plans: bool = False,
) -> Configuration:
    """The parameters of CONFIGURE; `statement_timeout` None leaves the limits that the role has; `engine` for our own loops,
    not for connections that handlers get; `keep_plans` for a session whose statements name the table of one queue."""
    offset = f"{clock.offset} seconds" if clock.offset else ""
    plans = "force_generic_plan" if keep_plans else "force_custom_plan" if engine else "auto"
    limit = None if statement_timeout is None else f"{round(statement_timeout * 1000)}"
    return limit, offset, engine, conn.info.backend_pid, plans


def waiting_to_be_read(socket: int) -> bool:
    """Whether data have arrived on it, or its end."""
    if not hasattr(select, "poll"):
        return bool(select.select([socket], [], [], 0)[0])
    looking = select.poll()
    looking.register(socket, select.POLLIN | select.POLLERR | select.POLLHUP)
    return bool(looking.poll(0))
