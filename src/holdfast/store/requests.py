"""Requests of programs under a key, and the reply to each: the same request is done once."""

from typing import NamedTuple

from .statement import Statement, named, nothing


class Request(NamedTuple):
    digest: str
    said: str | None  # None: it is in progress, or was cut off


def begin_request(who: str, key: str, digest: str) -> Statement[bool]:
    """False: there is one under this key."""
    return named("begin_request", (who, key, digest), bool)


def find_request(who: str, key: str) -> Statement[Request | None]:
    return named("find_request", (who, key), lambda rows: Request(*rows[0]) if rows else None)


def end_request(who: str, key: str, said: str) -> Statement[None]:
    return named("end_request", (who, key, said), nothing)


def forget_request(who: str, key: str) -> Statement[None]:
    return named("forget_request", (who, key), nothing)
