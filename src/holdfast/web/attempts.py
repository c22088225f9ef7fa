"""Limits wrong sign-ins. Correct ones from other addresses are accepted meanwhile."""

import time
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address

from starlette.requests import Request

from holdfast.web.identity import client_of

EACH = 10  # wrong tokens of one address in a minute
ALL = 100  # of all addresses together: from then on one wrong token is enough
MINUTE = 60.0
_KEPT = 10_000  # addresses


class Attempts:
    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._wrong: dict[str, tuple[float, int]] = {}  # since when, how many; the oldest first
        self._all = (0.0, 0)

    def wait(self, request: Request) -> float:
        """Seconds until a token of this address is checked again; 0: now."""
        now = self._now()
        since, count = self._wrong.get(_address(request), (0.0, 0))
        most = 1 if self._all[1] >= ALL and now - self._all[0] < MINUTE else EACH
        return max(since + MINUTE - now, 0.0) if count >= most else 0.0

    def failed(self, request: Request) -> None:
        now, address = self._now(), _address(request)
        self._wrong[address] = _counted(self._wrong.pop(address, (now, 0)), now)
        self._all = _counted(self._all, now)
        while len(self._wrong) > _KEPT:
            del self._wrong[next(iter(self._wrong))]


def _counted(seen: tuple[float, int], now: float) -> tuple[float, int]:
    since, count = seen
    return (since, count + 1) if count and now - since < MINUTE else (now, 1)


def _address(request: Request) -> str:
    """One house has a whole network of IPv6, so it counts as one."""
    host = client_of(request) or ""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or IPv6Address(int(address) >> 64 << 64))
    return host


def brings_token(request: Request) -> bool:
    """Other kinds may be for a proxy in between, and prove nothing about the users of this dashboard."""
    return request.headers.get("authorization", "").lower().startswith("bearer ")
