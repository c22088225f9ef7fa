"""Rules of single keys: how many jobs of one run at once, where it is not the number of its queue."""

from collections.abc import Sequence
from dataclasses import dataclass

from .statement import Statement, count, named


@dataclass(frozen=True, slots=True)
class KeyRule:
    queue: str
    key: str
    concurrency: int


def set_key_rules(queue: str, keys: Sequence[str], concurrency: int | None) -> Statement[int]:
    """None takes the rules away. Whoever claims from the queue next keeps to it."""
    return named("set_key_rules", (queue, list(keys), concurrency), count)


def list_key_rules(queue: str | None, keys: Sequence[str] | None, limit: int) -> Statement[list[KeyRule]]:
    wanted = None if keys is None else list(keys)
    return named("list_key_rules", (queue, wanted, limit), lambda rows: [KeyRule(*r) for r in rows])
