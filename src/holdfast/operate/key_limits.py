"""Keys with a limit that replaces the one of their queue."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ConfigurationError
from ..model.queue import QueueRules
from ..store import key_rules
from ..store.audit import audit
from ..store.key_rules import KeyRule
from ..store.queues import queue_rules
from ..store.statement import Flow
from ..store.wake import wake
from ..tasks import checks
from .holds import checked_keys
from .procedure import Procedure, actor, run
from .refusal import Refused
from .search import check_limit, check_queue

MOST_JOBS = 1_000_000  # jobs at once


@dataclass(frozen=True, slots=True)
class LimitedKeys:
    keys: list[KeyRule]
    more: bool  # there are others


def limit_keys(queue: str, keys: Sequence[str], *, concurrency: int | None) -> Procedure[LimitedKeys]:
    """Let at most that many jobs of each of the keys run at once, over all workers. None: as many as of any other key."""
    names = yield from checked_keys(queue, keys)
    if concurrency is not None:
        checks.integer(concurrency, "concurrency", 1, MOST_JOBS, ConfigurationError)
    who = yield from actor()

    def flow() -> Flow[list[KeyRule]]:
        rules = (yield from queue_rules([queue])).get(queue, QueueRules())
        if rules.key_concurrency is None:
            text = f"queue {queue!r} has no limit for each key, and so none for a single one"
            raise Refused("no_key_limit", text, queue=queue)
        yield from key_rules.set_key_rules(queue, names, concurrency)
        what = {"queue": queue, "keys": names, "concurrency": concurrency}
        yield from wake([queue])
        yield from audit(who, "keys limit", what, len(names))
        return (yield from key_rules.list_key_rules(queue, names, len(names)))

    return LimitedKeys((yield from run(flow)), more=False)


def limited_keys(queue: str | None = None, *, limit: int = 50) -> Procedure[LimitedKeys]:
    """The keys with a number of their own."""
    check_limit(limit)
    yield from check_queue(queue)
    found = yield from run(lambda: key_rules.list_key_rules(queue, None, limit + 1))
    return LimitedKeys(found[:limit], more=len(found) > limit)
