"""Queues: making one, and its rules."""

import json
from collections.abc import Sequence
from typing import Any

from ..model.queue import QueueRules, Rate
from .statement import Flow, Row, Statement, ids, named

_PLAIN = QueueRules()


def create_queue(name: str, lease: float | None = None, rules: QueueRules = _PLAIN) -> Flow[bool]:
    """Create a queue with its rules. False: it was there, and is left as it is."""
    params = (name, lease, rules.ordering, rules.on_dead_letter, rules.keyed)
    created = yield from named("create_queue", params, lambda rows: bool(rows[0][0]))
    if created and rules != _PLAIN:
        yield from set_rules(name, rules)
    return created


def set_rules(name: str, rules: QueueRules) -> Statement[list[str]]:
    """All but the ordering, which a queue is made with."""
    rate, key_rate = rules.rate, rules.key_rate
    params = (
        name,
        rules.on_dead_letter,
        rules.fair,
        json.dumps(rules.weights),
        rules.concurrency,
        rules.key_concurrency,
        rate.per_second if rate else None,
        rate.size if rate else None,
        key_rate.per_second if key_rate else None,
        key_rate.size if key_rate else None,
        rules.aging,
        rules.keep_completed,
        rules.affinity,
    )
    return named("set_rules", params, ids)


def queue_rules(queues: Sequence[str]) -> Statement[dict[str, QueueRules]]:
    def decode(rows: Sequence[Row]) -> dict[str, QueueRules]:
        return {r[0]: read_rules(r[1:]) for r in rows}

    return named("queue_rules", (list(queues),), decode)


def read_rules(row: Sequence[Any]) -> QueueRules:
    """The columns of the rules, in the order of queue_rules."""
    ordering, on_dead, fair, weights, concurrency, per_key, rate, burst, key_rate, key_burst, *more = row
    aging, keep, affinity = more
    return QueueRules(
        ordering=ordering,
        on_dead_letter=on_dead,
        fair=fair,
        weights=json.loads(weights),
        concurrency=concurrency,
        key_concurrency=per_key,
        rate=Rate.of(rate, burst),
        key_rate=Rate.of(key_rate, key_burst),
        aging=aging,
        keep_completed=keep,
        affinity=affinity,
    )
