"""Checks of single option values. `fail` is the error class: InvalidOption at enqueue, TaskDefinitionError at
declaration."""

import inspect
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any

from ..errors import ConfigurationError, HoldfastError, InvalidPayload
from ..model.duration import Duration, seconds
from ..settings import Settings
from .payload import METADATA_BYTES, dump, shown

KEY_BYTES = 512
MAX_TAGS = 20
TAG_CHARS = 100
MAX_DELAY = timedelta(days=3600)  # ten years as PostgreSQL compares intervals: months of 30 days
MIN_LIFETIME = 1.0
DEFAULT_LIFETIME = 7 * 86_400.0

_QUEUE = re.compile(r"[a-z][a-z0-9_]{0,39}")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_UNSAFE = re.compile("[\x00\ud800-\udfff]")
Fail = type[HoldfastError]


def app_arguments(url: object, include: object, settings: object, release: object) -> None:
    """What Holdfast() is given. No value is quoted: an address may have a password."""
    if not isinstance(url, str | None):
        raise ConfigurationError(
            f"Holdfast() takes the address of the database as text, not {type(url).__name__}. "
            "Write str(url) for pydantic's, and url.render_as_string(hide_password=False) for SQLAlchemy's"
        )
    if isinstance(include, str):
        raise ConfigurationError(f"include= takes a list. Write include=[{include!r}]")
    if not isinstance(settings, Settings | None):
        raise ConfigurationError(f"settings= takes Settings(...), not {type(settings).__name__}")
    if not isinstance(release, str | None):
        raise ConfigurationError(f"release= must be text, not {release!r}")


def known_names(given: Iterable[str], known: Collection[str], what: str, fail: Fail) -> None:
    """Refuse names that are not options, with the nearest one."""
    for name in given:
        if name not in known:
            names = sorted(known)
            near = get_close_matches(name, names, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise fail(f"{what} has no option {name!r} (known: {', '.join(names)}).{hint}")


def plain_function(function: object, what: str, fail: Fail) -> None:
    """Refuse an async function where nothing awaits what it returns."""
    if any(map(inspect.iscoroutinefunction, (function, getattr(function, "__call__", None)))):  # noqa: B004
        raise fail(f"{what} is called for each event, and nothing awaits it: write def, not async def")


def queue_name(value: object, fail: Fail) -> str:
    if not isinstance(value, str) or not _QUEUE.fullmatch(value):
        raise fail(
            f"queue must be a name of 1 to 40 lower-case letters, digits and '_' that starts with a letter, "
            f"not {shown(value)}"
        )
    return value


def task_name(value: object, what: str, fail: Fail) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise fail(f"{what} must be 1 to 200 letters, digits, '_', '.' or '-', not {shown(value)}")
    return value


def yes_or_no(value: object, what: str, fail: Fail) -> bool:
    if not isinstance(value, bool):
        raise fail(f"{what} must be True or False, not {shown(value)}")
    return value


def integer(value: object, what: str, low: int, high: int, fail: Fail) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise fail(f"{what} must be an integer from {low} to {high}, not {shown(value)}")
    return value


def key(value: object, what: str, fail: Fail, *, empty: bool) -> str:
    if not isinstance(value, str):
        raise fail(f"{what} must be a string, not {shown(value)}. Use str(...)")
    if not value and not empty:
        raise fail(f"{what} must not be empty. Leave it out for none")
    if _UNSAFE.search(value):
        raise fail(f"{what} contains a NUL character or a lone surrogate: {shown(value)}. Remove it")
    size = len(value.encode())
    if size > KEY_BYTES:
        raise fail(
            f"{what} is {size} bytes, more than the limit of {KEY_BYTES}: {shown(value)}. Use a hash of it"
        )
    return value


def lifetime(value: Any, fail: Fail) -> float:
    if value == "forever":
        return math.inf
    number = period(value, "idempotency_lifetime", fail)
    if number < MIN_LIFETIME:
        raise fail(f'idempotency_lifetime must be 1 second or more, or "forever", not {shown(value)}')
    return number


def period(value: Any, what: str, fail: Fail) -> float:
    """A duration above zero."""
    try:
        number = seconds(value, what)
    except (TypeError, ValueError) as error:
        raise fail(str(error)) from None
    if number <= 0:
        raise fail(f"{what} must be more than 0 seconds, not {shown(value)}")
    return number


def moment(value: Any, fail: Fail) -> datetime | float:
    """run_after: an aware datetime, or a duration from now."""
    if not isinstance(value, datetime):
        return _delay(value, fail)
    if value.tzinfo is None or value.utcoffset() is None:
        raise fail(
            f"run_after must be a datetime with a time zone, not {value!r}. "
            "Use datetime.now(UTC) + timedelta(...), or seconds"
        )
    try:
        at = value.astimezone(UTC)  # the two of a repeated hour are equal to Python
    except OverflowError:
        raise fail(f"run_after must be a time from year 1 to 9999 in UTC, not {value.isoformat()}") from None
    if at > datetime.now(UTC) + MAX_DELAY:
        raise fail(f"run_after must be at most 10 years ahead, not {value.isoformat()}")
    return at


def _delay(value: Duration, fail: Fail) -> float:
    try:
        number = seconds(value, "run_after")
    except TypeError:
        raise fail(
            f'run_after must be a datetime, a timedelta, seconds or text like "10m", not {shown(value)}'
        ) from None
    except ValueError as error:
        if isinstance(value, str):
            raise fail(str(error)) from None
        if type(value) in (int, float) and value > 0:  # type: ignore[operator] # beyond any float
            raise fail(f"run_after must be at most 10 years ahead, not {shown(value)}") from None
        raise fail(
            f"run_after must be 0 or more seconds, not {shown(value)}. For now, leave it out"
        ) from None
    if number > MAX_DELAY.total_seconds():
        raise fail(f"run_after must be at most 10 years ahead, not {shown(value)}")
    return number


def tags(value: object, fail: Fail) -> tuple[str, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise fail(f"tags must be a list of strings, not {shown(value)}. Write tags=[...]")
    if len(value) > MAX_TAGS:
        raise fail(
            f"tags has {len(value)} entries, more than the limit of {MAX_TAGS}. Use metadata for the rest"
        )
    for tag in value:
        if not isinstance(tag, str) or not 1 <= len(tag) <= TAG_CHARS or _UNSAFE.search(tag):
            raise fail(
                f"each tag must be a string of 1 to {TAG_CHARS} characters without NUL or lone surrogates, "
                f"not {shown(tag)}"
            )
    return tuple(value)


def metadata(value: object, fail: Fail) -> str:
    if not isinstance(value, Mapping):
        raise fail(f"metadata must be a mapping of JSON values, not {shown(value)}")
    try:
        return dump(dict(value), "metadata", METADATA_BYTES)
    except InvalidPayload as error:
        raise fail(str(error)) from None
