"""What `holdfast queue create`, `set`, `list` and `show` say of limits."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from holdfast.errors import ConfigurationError
from holdfast.model.duration import parse_duration
from holdfast.model.queue import QueueRules, Rate
from holdfast.operate.limits import Changes, QueueRulesSeen
from holdfast.tasks.queueing import parse_rate

NONE = "none"  # takes a limit away

WeightOption = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=NUMBER", help="Turns of a key in a fair queue, if they are not 1; repeatable."),
]
ConcurrencyOption = Annotated[
    str | None, typer.Option(metavar="N", help="Jobs of the queue that run at once, over all workers.")
]
KeyConcurrencyOption = Annotated[
    str | None, typer.Option(metavar="N", help="The same for each partition key.")
]
RateOption = Annotated[
    str | None, typer.Option(metavar="N/s|m|h|d", help="Starts of the queue, over all workers: 100/m.")
]
BurstOption = Annotated[
    int | None,
    typer.Option(help="Starts at once after a quiet time.", show_default="what a second allows, at least 1"),
]
KeyRateOption = Annotated[str | None, typer.Option(metavar="N/s|m|h|d", help="Starts of each partition key.")]
KeyBurstOption = Annotated[int | None, typer.Option(help="As --burst, for --key-rate.")]
AgingOption = Annotated[
    str | None, typer.Option(metavar="SPAN", help="How much waiting counts as one priority: 90s, 5m.")
]

KeepOption = Annotated[
    bool | None,
    typer.Option(
        "--keep-completed/--drop-completed",
        help="Whether completed jobs stay in the archive. Dropped ones have no result and cannot be inspected.",
        show_default="keep",
    ),
]


class Affinity(StrEnum):
    none = "none"
    key = "key"


AffinityOption = Annotated[
    Affinity | None,
    typer.Option(
        help="key: jobs of a partition key go to the same worker while it lives, in no order.",
        show_default="none",
    ),
]


def kept_and_affine(keep_completed: bool | None, affinity: Affinity | None) -> dict[str, Any]:
    """Those of the two that were named."""
    named: dict[str, Any] = {} if keep_completed is None else {"keep_completed": keep_completed}
    return named if affinity is None else {**named, "affinity": affinity.value}


def given(
    weight: Sequence[str] | None,
    concurrency: str | None,
    key_concurrency: str | None,
    rate: str | None,
    burst: int | None,
    key_rate: str | None,
    key_burst: int | None,
    aging: str | None,
    has: QueueRules | None = None,
) -> dict[str, Any]:
    """The rules that were named; None takes one away. A burst or a weight changes a part of what the queue `has`."""
    found: dict[str, Any] = {}
    if weight:
        found["weights"] = _weights(weight, has.weights if has else {})
    for name, text in (("concurrency", concurrency), ("key_concurrency", key_concurrency)):
        if text is not None:
            found[name] = None if text == NONE else whole(text, name)
    if aging is not None:
        found["aging"] = None if aging == NONE else _seconds(aging)
    for name, text, size in (("rate", rate, burst), ("key_rate", key_rate, key_burst)):
        if text is not None or size is not None:
            found[name] = _rate(name, text, size, getattr(has, name) if has else None)
    return found


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def whole(text: str, name: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise ConfigurationError(
            f"{_option(name)} takes a whole number from 1 to 1000000, or none, not {text!r}"
        )
    return int(text)


def _seconds(text: str) -> float:
    value = parse_duration(text)
    if value is None or not 0 < value < 1e9:
        raise ConfigurationError(
            f"--aging takes a span of time such as 90s, more than 0, or none, not {text!r}"
        )
    return value


def _rate(name: str, text: str | None, size: int | None, has: Rate | None) -> Rate | None:
    if text == NONE:
        return None
    if size is not None and not 1 <= size <= 1_000_000:
        raise ConfigurationError(
            f"{_option(name).replace('rate', 'burst')} takes a number from 1 to 1000000, not {size}"
        )
    if text is not None:
        return parse_rate(text, size, ConfigurationError)
    if has is None:
        burst = _option(name).replace("rate", "burst")
        raise ConfigurationError(
            f"{burst} is the size of a rate's bucket: give {_option(name)} too, as 100/m"
        )
    return Rate(has.count, has.per, size)


def _weights(words: Sequence[str], has: Mapping[str, float]) -> dict[str, float]:
    found = dict(has)
    for word in words:
        key, equals, text = word.rpartition("=")
        try:
            weight = float(text)
        except ValueError:
            weight = 0.0
        if not equals or not 0.01 <= weight <= 100:
            raise ConfigurationError(
                f"--weight takes a key and a number from 0.01 to 100, as vip=3, not {word!r}"
            )
        if weight == 1:
            found.pop(key, None)
        else:
            found[key] = weight
    return found


# Said of them --------------------------------------------------------------------------------------------------------

_WORDS = {
    "ordering": "ordering",
    "on_dead_letter": "on dead letter",
    "fair": "fair",
    "weights": "weights",
    "concurrency": "concurrency",
    "key_concurrency": "concurrency per key",
    "rate": "rate",
    "key_rate": "rate per key",
    "aging": "aging",
    "keep_completed": "completed jobs are kept",
    "affinity": "affinity",
}


def changes_text(changes: Changes) -> str:
    """'concurrency 20 (was none), rate none (was 100/m burst 2)'."""
    return ", ".join(
        f"{_WORDS[name]} {_text(name, new)} (was {_text(name, old)})" for name, (old, new) in changes.items()
    )


def _text(name: str, value: Any) -> str:
    if value is None:
        return NONE
    if name == "weights":
        return " ".join(f"{key}={weight:g}" for key, weight in sorted(value.items()))
    if name == "aging":
        return f"{value:g} s"
    return {True: "yes", False: "no"}.get(value, f"{value}") if isinstance(value, bool) else f"{value}"


def rules_text(seen: QueueRulesSeen | None) -> str:
    """In a list: '3 of 20 run, 100/m burst 10 (7 left)'."""
    if seen is None:
        return "-"
    parts = [text for name, text in _lines(seen) if name not in ("ordering", "on dead letter")]
    return ", ".join(parts) or "-"


def rules_lines(seen: QueueRulesSeen) -> list[tuple[str, str]]:
    return _lines(seen)


def _lines(seen: QueueRulesSeen) -> list[tuple[str, str]]:
    found = []
    for name, value in seen.rules.items():
        text = _text(name, value)
        if name == "concurrency":
            text = f"{seen.running} of {text} run"
        elif name == "rate":
            left = 0 if seen.tokens is None else int(max(seen.tokens, 0))
            wait = f", next in {seen.next_in:.1f} s" if seen.next_in else ""
            text = f"{text} ({left} left{wait})"
        elif name == "key_concurrency":
            text = f"{text} of a key ({seen.keys_full} keys at it)"
        elif name == "key_rate":
            text = f"{text} of a key"
        elif name == "fair":
            text = "fair"
        elif name in ("weights", "aging"):
            text = f"{name} {text}"
        elif name == "keep_completed":
            text = "completed jobs are not kept"
        elif name == "affinity":
            text = "affinity by key"
        found.append((_WORDS[name], text))
    return found
