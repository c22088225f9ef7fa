"""Who did what: every act that changes jobs, queues, tasks or workers leaves a row. The actor is what the caller says; the
role that was logged in is noted by the server."""

from ..store import audit as store
from ..store.audit import AuditLine
from .procedure import Procedure, run


def list_audit(*, before: int | None = None, limit: int = 50) -> Procedure[list[AuditLine]]:
    """The last acts first; `before` goes on below an entry."""
    return (yield from run(lambda: store.list_audit(before, limit)))
