"""Received messages, and the job of each. Verbs are procedures, sync and async."""

from ...errors import ConfigurationError
from ...operate.procedure import Method, Procedure, Runner, run
from ...operate.refusal import Refused
from . import store
from .store import Received

MOST_ROWS = 1000  # rows of a list
_LOOKED_AT = 100_000


def list_received(source: str | None = None, limit: int = 50) -> Procedure[list[Received]]:
    """Those whose ids are kept longest first, which within a source is the newest first. Reads a bounded number."""
    if not 1 <= limit <= MOST_ROWS:
        raise Refused(
            "limit",
            f"limit must be between 1 and {MOST_ROWS}, not {limit}",
            what="messages",
            most=MOST_ROWS,
            limit=limit,
        )
    return (yield from run(lambda: store.list_received(source, limit, _LOOKED_AT)))


def show_received(source: str, message_id: str) -> Procedure[Received]:
    """One message, by the name of its source and the sender's id."""
    found = yield from run(lambda: store.show_received(source, message_id))
    if found is None:
        raise ConfigurationError(
            f"no message {message_id!r} of source {source!r} is known: it was not received, or its id is no longer kept"
        )
    return found


class Looks(Runner):
    list = Method(list_received)
    show = Method(show_received)
