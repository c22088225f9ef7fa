"""The time zone in which a browser is shown times. Its own cookie names it; what programs get stays in UTC."""

import functools
import zoneinfo
from contextvars import ContextVar
from datetime import UTC, datetime, tzinfo
from urllib.parse import unquote

from starlette.requests import Request

COOKIE = (
    "holdfast_zone"  # written by the page of settings: it is no secret, and only ever looked up in a list
)
_zone: ContextVar[tzinfo] = ContextVar("zone", default=UTC)


def use_zone(request: Request) -> None:
    """For all that is drawn for this request, streams too."""
    _zone.set(_known(unquote(request.cookies.get(COOKIE, "")[:64])))


@functools.lru_cache(maxsize=64)
def _known(name: str) -> tzinfo:
    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):  # a folder and half of a name are OSErrors
        return UTC


def here(at: datetime) -> datetime:
    """The moment in the zone of who looks, if it has one there: the last day of 9999 does not everywhere."""
    try:
        return at.astimezone(_zone.get())
    except OverflowError:
        return at


def wall(at: datetime) -> str:
    """`13:10:01 UTC`"""
    return f"{here(at):%H:%M:%S} {zone_name(at)}"


def zone_name(at: datetime | None = None) -> str:
    return here(at or datetime.now(UTC)).tzname() or "UTC"
