"""The options of a queue: their types, and their run-time checks."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict

from ..errors import HoldfastError, TaskDefinitionError
from ..model.duration import Duration
from ..model.queue import UNITS, QueueRules, Rate
from . import checks
from .payload import shown

Fail = type[HoldfastError]
MOST_WEIGHTS = 1000


class QueueOptions(TypedDict, total=False):
    """What `queue()` takes: `app.queue("mail", concurrency=20, rate=Rate(100, per=60), fair=True)`."""

    ordering: Literal["none", "key"]
    on_dead_letter: Literal["skip", "block", "park"]
    fair: bool
    weights: Mapping[str, float]
    concurrency: int
    key_concurrency: int
    rate: Rate
    key_rate: Rate
    aging: Duration
    keep_completed: bool
    affinity: Literal["none", "key"]


def queue_rules(options: Mapping[str, Any], fail: Fail = TaskDefinitionError) -> QueueRules:
    """Checked QueueOptions; the error says what to do."""
    checks.known_names(options, QueueOptions.__annotations__, "queue", fail)
    rules = QueueRules(**{name: _CHECKS[name](value, fail) for name, value in options.items()})
    check_rules_together(rules, fail)
    return rules


def check_rules_together(rules: QueueRules, fail: Fail) -> None:
    """Rules that do not go together are refused."""
    if rules.on_dead_letter != "skip" and not rules.ordered:
        raise fail(
            f"on_dead_letter={rules.on_dead_letter!r} needs ordering='key': only there does a job wait for another. "
            "Add ordering='key', or leave on_dead_letter out"
        )
    if rules.ordered and rules.fair:
        raise fail("an ordered queue gives every key its turn already. Leave fair out")
    if rules.ordered and rules.key_concurrency is not None:
        raise fail("an ordered queue runs one job of a key at a time. Leave key_concurrency out")
    if rules.weights and not rules.fair:
        raise fail("weights need fair=True: they say how often the turn of a key comes. Add fair=True")
    if rules.aging is not None and rules.keyed:
        raise fail("aging is for queues that are claimed by priority, not key by key. Leave aging out")
    if rules.affine:
        _check_affinity(rules, fail)


def _check_affinity(rules: QueueRules, fail: Fail) -> None:
    if rules.ordered:
        raise fail("an ordered queue keeps each key with one worker already. Leave affinity out")
    if rules.keyed:
        raise fail(
            "affinity='key' does not go with fair, key_concurrency or key_rate: there every worker claims from every key, "
            "so that each gets its share. Leave affinity out, or those"
        )
    if rules.aging is not None:
        raise fail(
            "affinity='key' does not go with aging: which job has waited longest is a question to the whole queue, and each "
            "worker takes from its own keys. Leave one of them out"
        )


def _one_of(name: str, *allowed: str) -> Callable[[object, Fail], Any]:
    def check(value: object, fail: Fail) -> object:
        if value not in allowed:
            raise fail(f"{name} must be one of {', '.join(allowed)}, not {shown(value)}")
        return value

    return check


def _yes_or_no(name: str) -> Callable[[object, Fail], bool]:
    def check(value: object, fail: Fail) -> bool:
        return checks.yes_or_no(value, name, fail)

    return check


def _weights(value: object, fail: Fail) -> dict[str, float]:
    if not isinstance(value, Mapping) or len(value) > MOST_WEIGHTS:
        raise fail(
            f'weights must map at most {MOST_WEIGHTS} keys to numbers, not {shown(value)}. Write weights={{"vip": 3}}'
        )
    found = {}
    for name, weight in value.items():
        key = checks.key(name, "each key of weights", fail, empty=True)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0.01 <= weight <= 100:
            raise fail(f"the weight of {key!r} must be a number from 0.01 to 100, not {shown(weight)}")
        found[key] = float(weight)
    return found


def _rate(name: str) -> Callable[[object, Fail], Rate]:
    def check(value: object, fail: Fail) -> Rate:
        if not isinstance(value, Rate):
            raise fail(f"{name} must be a Rate, not {shown(value)}. Write {name}=Rate(100, per=60)")
        return value

    return check


def parse_rate(text: str, burst: int | None, fail: Fail) -> Rate:
    """'100/m': a hundred a minute. Units: s, m, h, d."""
    count, _, unit = text.partition("/")
    try:
        number = float(count)
        if unit not in UNITS or not 0 < number < math.inf:
            raise ValueError
        return Rate(number, UNITS[unit], burst)
    except ValueError:
        raise fail(f"a rate is a number and s, m, h or d, as 100/m, not {text!r}") from None


_CHECKS: dict[str, Callable[[Any, Fail], Any]] = {
    "ordering": _one_of("ordering", "none", "key"),
    "on_dead_letter": _one_of("on_dead_letter", "skip", "block", "park"),
    "fair": _yes_or_no("fair"),
    "weights": _weights,
    "concurrency": lambda v, fail: checks.integer(v, "concurrency", 1, 1_000_000, fail),
    "key_concurrency": lambda v, fail: checks.integer(v, "key_concurrency", 1, 1_000_000, fail),
    "rate": _rate("rate"),
    "key_rate": _rate("key_rate"),
    "aging": lambda v, fail: checks.period(v, "aging", fail),
    "keep_completed": _yes_or_no("keep_completed"),
    "affinity": _one_of("affinity", "none", "key"),
}
