"""Holds of keys: nothing of a key is claimed until a certain time, or until the hold is lifted.

A hold is for queues that are claimed key by key and stay so: fair ones and those ordered by key. No claim that begins after
the hold committed takes a job of the key; jobs that are claimed already finish.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ConfigurationError
from ..store import holds
from ..store.audit import audit
from ..store.holds import Hold
from ..store.queue_load import prefer_indexes
from ..store.statement import Flow
from .procedure import Procedure, actor, run
from .refusal import Refused
from .search import check_limit, check_queue, check_texts

_LONGEST_KEY = 512  # bytes


@dataclass(frozen=True, slots=True)
class HeldKeys:
    holds: list[Hold]  # those that end first before the others
    more: bool  # there are others


def hold_keys(
    queue: str,
    keys: Sequence[str],
    *,
    seconds: float | None = None,
    reason: str | None = None,
    trial: bool = False,
) -> Procedure[HeldKeys]:
    """Claim nothing from the keys for this long, or until they are lifted. With `trial` one job of each is claimed then, and
    the rest when the hold is lifted. An existing hold is replaced."""
    names = yield from checked_keys(queue, keys)
    check_texts({"reason": reason})
    who = yield from actor()

    def flow() -> Flow[list[Hold]]:
        yield from holds.hold_keys(queue, names, seconds, reason=reason, trial=trial)
        what = {"queue": queue, "keys": names, "seconds": seconds, "reason": reason, "trial": trial}
        yield from audit(who, "keys hold", what, len(names))
        found: list[Hold] = []
        for name in names[:_SHOWN]:
            found += yield from holds.list_holds(queue, name, limit=1)
        return found

    return HeldKeys((yield from run(flow)), more=len(names) > _SHOWN)


_SHOWN = 50


def lift_keys(queue: str, keys: Sequence[str]) -> Procedure[list[str]]:
    """Let jobs of the keys be claimed again. All of them are held, or nothing is lifted."""
    names = yield from checked_keys(queue, keys)
    who = yield from actor()

    def flow() -> Flow[list[str]]:
        lifted = yield from holds.lift_keys(queue, names)
        if free := [name for name in names if name not in lifted]:
            text = f"nothing was lifted: key {free[0]!r} of queue {queue!r} is not held"
            raise Refused("not_held", text, queue=queue, key=free[0])
        yield from audit(who, "keys lift", {"queue": queue, "keys": names}, len(names))
        return lifted

    return sorted((yield from run(flow)))


def held_keys(queue: str | None = None, *, key: str | None = None, limit: int = 50) -> Procedure[HeldKeys]:
    """The keys that are held now, and those that wait for their trial."""
    check_limit(limit)
    yield from check_queue(queue)
    check_texts({"key": key})
    found = yield from run(lambda: _list(queue, key, limit + 1))
    return HeldKeys(found[:limit], more=len(found) > limit)


def _list(queue: str | None, key: str | None, limit: int) -> Flow[list[Hold]]:
    yield from prefer_indexes()
    return (yield from holds.list_holds(queue, key, limit=limit))


def checked_keys(queue: str, keys: Sequence[str]) -> Procedure[list[str]]:
    """The keys, each once."""
    yield from check_queue(queue)
    names = sorted(set(keys))
    if not names:
        raise ConfigurationError("no key is given. Name one at least")
    check_texts({f"key {n}": name for n, name in enumerate(names, 1)})
    if long := [name for name in names if len(name.encode()) > _LONGEST_KEY]:
        raise ConfigurationError(
            f"key {long[0][:40]!r}... has {len(long[0].encode()):,} bytes. A partition key has {_LONGEST_KEY} at most"
        )
    return names
