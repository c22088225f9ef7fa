"""The SQL that makes the roles, each with exactly the rights it needs."""

import re
from collections.abc import Sequence

from ..errors import ConfigurationError
from ..store.roles import roles_script
from ..tasks import checks

ROLES = ("owner", "migrator", "producer", "receiver", "portal", "worker", "operator_ro", "operator_rw")
_LONGEST = 63
_PREFIX = re.compile(r"[a-z_][a-z0-9_]{0,29}")


def roles_sql(prefix: str = "holdfast", queues: Sequence[str] = ()) -> str:
    """The script for a DBA, made without a connection. For each of `queues` one more role, which may enqueue there only."""
    if not _PREFIX.fullmatch(prefix):
        raise ConfigurationError(
            f"the prefix of roles must be 1 to 30 lower-case letters, digits and _, a letter or _ first, not {prefix!r}"
        )
    for queue in queues:
        checks.queue_name(queue, ConfigurationError)
    limited = {queue: f"{prefix}_producer_{queue}" for queue in sorted(set(queues))}
    if long := next((name for name in limited.values() if len(name) > _LONGEST), None):
        raise ConfigurationError(
            f"the role {long} would have {len(long)} letters, and PostgreSQL takes {_LONGEST}: choose a shorter prefix"
        )
    return roles_script({name: f"{prefix}_{name}" for name in ROLES}, limited)
