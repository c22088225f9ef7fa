"""Who did what: every act that changes jobs, queues, tasks or workers leaves a row. The actor is what the caller says; the
role that was logged in is noted by the server."""

import getpass
import os
import socket

from ..db.database import Database
from ..model.text import storable
from ..store import audit as store
from ..store.audit import AuditLine


def actor() -> str:
    """Who acts: HOLDFAST_ACTOR, else the system's user and host."""
    if named := os.environ.get("HOLDFAST_ACTOR"):
        return storable(named, 200)
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        user = str(os.getuid())
    return storable(f"{user}@{socket.gethostname()}", 200)


def list_audit(database: Database, *, before: int | None = None, limit: int = 50) -> list[AuditLine]:
    """The last acts first; `before` goes on below an entry."""
    return database.run(lambda: store.list_audit(before, limit))
