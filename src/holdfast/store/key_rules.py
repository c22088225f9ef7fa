"""Rules of single keys: how many jobs of one key run at once, where its queue's number does not apply."""

from collections.abc import Sequence
from dataclasses import dataclass

from .statement import Statement, count, named


@dataclass(frozen=True, slots=True)
class KeyRule:
    queue: str
    key: str
    concurrency: int


def set_key_rules(queue: str, keys: Sequence[str], concurrency: int | None) -> Statement[int]:
    """None removes the rules. The next claim from the queue applies them."""
    return named("set_key_rules", (queue, list(keys), concurrency), count)


def list_key_rules(queue: str | None, keys: Sequence[str] | None, limit: int) -> Statement[list[KeyRule]]:
    wanted = None if keys is None else list(keys)
    return named("list_key_rules", (queue, wanted, limit), lambda rows: [KeyRule(*r) for r in rows])
