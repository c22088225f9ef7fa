"""Names that take long to look up, on purpose or not: they hold up nobody but each other."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.conftest import await_until

from holdfast.egress import names
from holdfast.egress.names import SystemResolver


class Names:
    """A name server that does not reply about some names until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.asked: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        self._lock = threading.Lock()

    def look_up(self, host: str) -> list[str]:
        with self._lock:
            self.asked[host] += 1
            self.waiting[host] += 1
        try:
            if host.startswith("slow"):
                self.let_go.wait(60)
            if host.startswith("missing"):
                raise OSError("no such name")
            return ["192.0.2.1"]
        finally:
            with self._lock:
                self.waiting[host] -= 1


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    found = Names()
    monkeypatch.setattr(names, "_look_up", found.look_up)
    monkeypatch.setattr(names, "QUICK", 0.05)
    yield found
    found.let_go.set()


async def test_slow_names_delay_no_other_name(server: Names) -> None:
    resolve = SystemResolver()
    slow = [asyncio.create_task(_quietly(resolve, f"slow{n}.example")) for n in range(100) for _ in range(3)]
    await await_until(lambda: len(server.asked) >= 64, "more are under way than there are places")
    for n in range(100):
        assert await resolve(f"good{n}.example", 443) == ["192.0.2.1"]
    assert not server.let_go.is_set()
    assert set(server.waiting.values()) <= {0, 1}, "one look-up of a name at a time"
    server.let_go.set()
    assert {len(found) for found in await asyncio.gather(*slow)} == {1}
    resolve.close()


async def test_a_name_that_was_slow_waits_for_places_of_its_own(server: Names) -> None:
    resolve = SystemResolver()
    hosts = [f"slow{n}.example" for n in range(40)]
    first = [asyncio.create_task(_quietly(resolve, host)) for host in hosts]
    await await_until(lambda: len(resolve._slow) == 40, "all of them are known as slow")
    server.let_go.set()
    await asyncio.gather(*first)
    server.let_go.clear()
    again = [asyncio.create_task(_quietly(resolve, host)) for host in hosts]
    await await_until(lambda: sum(server.waiting.values()) == names.PLACES, "as many as there are places")
    assert await resolve("good.example", 443) == ["192.0.2.1"]
    assert sum(server.waiting.values()) == names.PLACES
    server.let_go.set()
    await asyncio.gather(*again)
    resolve.close()


async def test_who_gives_up_or_fails_leaves_nothing_behind(server: Names) -> None:
    resolve = SystemResolver()
    one, two = (asyncio.create_task(_quietly(resolve, "slow.example")) for _ in range(2))
    await await_until(lambda: server.asked["slow.example"] == 1, "it is asked for")
    one.cancel()
    server.let_go.set()
    assert await two == ["192.0.2.1"], "the other one goes on"
    for _ in range(2):
        with pytest.raises(OSError, match="no such name"):
            await resolve("missing.example", 443)
    assert server.asked["missing.example"] == 2, "nothing is kept of a failure"
    assert resolve._under_way == {}
    resolve.close()


async def _quietly(resolve: SystemResolver, host: str) -> list[str]:
    return list(await resolve(host, 443))
