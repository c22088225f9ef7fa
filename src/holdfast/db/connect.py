"""How our own connections are opened and what they are set to."""

from typing import Any

from ..model.clock import Clock
from ..settings import Settings

# READ COMMITTED whatever the role's default is: a claim in a stricter one would only fail. Never `off` for
# synchronous_commit: a claim lost in a crash would issue its generation twice. Custom plans: a generic plan of a
# partitioned table is planned for every queue at once. The engine's own sessions also never scan a whole table where
# an index will do, nor sort what an index has in order: no or old statistics make both look cheap. Compiling such plans
# would take longer than running them. ISO dates, whatever the role's default: a driver reads no others.
CONFIGURE = """
SELECT set_config('datestyle', 'ISO', false),
       set_config('default_transaction_isolation', 'read committed', false),
       set_config('plan_cache_mode', 'force_custom_plan', false),
       set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
                                        ELSE current_setting('synchronous_commit') END, false),
       set_config('statement_timeout', $1, false),
       set_config('idle_in_transaction_session_timeout', $1, false),
       set_config('holdfast.clock_offset', $2, false),
       set_config('enable_seqscan', CASE WHEN $3::boolean THEN 'off' ELSE current_setting('enable_seqscan') END, false),
       set_config('enable_bitmapscan', CASE WHEN $3::boolean THEN 'off'
                                       ELSE current_setting('enable_bitmapscan') END, false),
       set_config('jit', CASE WHEN $3::boolean THEN 'off' ELSE current_setting('jit') END, false)
"""

# For a handler's transaction with a timeout: nothing of it outlives the attempt by long.
LIMIT = """
SELECT set_config('statement_timeout', %s, true), set_config('idle_in_transaction_session_timeout', %s, true)
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


def configuration(clock: Clock, statement_timeout: float, engine: bool) -> tuple[str, str, bool]:
    """The parameters of CONFIGURE; `engine` for our own loops, not for connections that handlers get."""
    return f"{round(statement_timeout * 1000)}", f"{clock.offset} seconds" if clock.offset else "", engine
