"""One suite for every transport, against the real server: `class TestMine(transport_conformance(MyBroker)): ...`

docs/transports.md has what each test means. A broker is a server that the tests may kill, freeze and fill.
"""

import asyncio
import contextlib
import json
import os
import unittest
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol, TypeVar
from uuid import UUID, uuid4

from ..transport import Confirmed, InMessage, OutMessage, Refused, RetryLater, Transport
from .sender import Sender

T = TypeVar("T")
_PATIENT = 60.0  # seconds after which something that must end counts as stuck


class Broker(Protocol):
    """A real server that can be broken. Optional members, each with a test that is skipped without it:

    `async def slow(self) -> None`: alive, but every reply takes a good part of a second from now on, until thaw().
    `def wrong_credentials(self) -> tuple[Transport, str] | None`: a transport that may not enter, and the secret that no
    error may tell; None: the server asks for none.
    `small = True`: it takes seconds for a hundred messages, so it gets a few."""

    def transport(self) -> Transport:
        """A new one each time. It refuses destinations that do not exist, where it can."""
        ...

    def destination(self, name: str) -> str | Awaitable[str]:
        """A new and empty one; with `async def` too."""
        ...

    def missing(self) -> str | None:
        """One that does not exist; None: every name does."""
        ...

    async def read(self, destination: str) -> Sequence[InMessage]:
        """All that is stored, in order."""
        ...

    async def kill(self) -> None: ...

    async def start(self) -> None: ...

    async def freeze(self) -> None: ...

    async def thaw(self) -> None: ...

    async def fill(self, destination: str) -> bool | str | None:
        """Leave it no room, and return True; or return the name of another that has none. False or None: it cannot be."""
        ...


async def _destination(server: Broker, name: str) -> str:
    made = server.destination(name)
    return made if isinstance(made, str) else await made


def _optional(server: Broker, name: str) -> Any:
    """A member that not every broker has; without it the test is skipped."""
    found = getattr(server, name, None)
    if found is None:
        raise unittest.SkipTest(f"{type(server).__name__} has no {name}()")
    return found


def _fewer(server: Broker, count: int) -> int:
    return max(11, count // 8) if getattr(server, "small", False) else count


def _message(destination: str, position: int, key: str | None, body: bytes | None = None) -> OutMessage:
    event_id = uuid4()
    return OutMessage(
        str(event_id),
        position,
        "conformance",
        key,
        destination,
        {"ce-id": str(event_id), "ce-type": "conformance", "ce-source": "holdfast"},
        body if body is not None else _body(event_id, position),
    )


def _body(event_id: UUID, position: int, fill: int = 0) -> bytes:
    envelope = {
        "specversion": "1.0",
        "id": str(event_id),
        "source": "holdfast",
        "type": "conformance",
        "data": {"n": position, "fill": "x" * fill},
    }
    return json.dumps(envelope, separators=(",", ":")).encode()


def _data(body: bytes) -> Any:
    return json.loads(body)["data"]


def _n(stored: InMessage) -> int:
    return int(_data(stored.body)["n"])


def _first(found: Iterable[InMessage]) -> list[InMessage]:
    """Each id where it comes first: what a reader sees that drops repeats."""
    return list({one.id: one for one in reversed(list(found))}.values())[::-1]


def _check_order(stored: Sequence[InMessage], sent: Sequence[OutMessage]) -> None:
    """Nothing is missing, and within each key each message comes first in the order in which it was sent."""
    by_id = {message.id: message for message in sent}
    found: dict[str | None, list[int]] = defaultdict(list)
    for one in _first(stored):
        found[by_id[one.id].key].append(by_id[one.id].position)
    wanted: dict[str | None, list[int]] = defaultdict(list)
    for message in sent:
        wanted[message.key].append(message.position)
    assert dict(found) == dict(wanted)


class Conformance:
    """A pytest class: one test per line of docs/transports.md."""

    __test__ = False

    def broker(self) -> Broker:
        raise NotImplementedError

    def run(self, work: Callable[[Broker, Transport], Coroutine[Any, Any, T]]) -> T:
        async def main() -> T:
            server = self.broker()
            transport = server.transport()
            try:
                async with asyncio.timeout(10 * _PATIENT):
                    return await work(server, transport)
            finally:
                with contextlib.suppress(Exception):
                    await server.thaw()
                await transport.close()

        return asyncio.run(main())

    def test_what_is_confirmed_is_stored_as_it_was_sent(self) -> None:
        self.run(_stores)

    def test_messages_of_a_key_are_stored_in_order(self) -> None:
        self.run(_orders)

    def test_the_same_id_again(self) -> None:
        self.run(_repeats)

    def test_a_server_that_is_killed_in_the_middle_loses_nothing_that_it_confirmed(self) -> None:
        self.run(_killed)

    def test_a_frozen_server_leaves_it_open_what_was_stored(self) -> None:
        self.run(_frozen)

    def test_a_slow_server_is_waited_for(self) -> None:
        self.run(_slow)

    def test_a_destination_that_does_not_exist_is_refused_and_its_neighbours_are_not(self) -> None:
        self.run(_missing)

    def test_a_message_that_is_too_large_is_refused_and_its_neighbours_are_not(self) -> None:
        self.run(_too_large)

    def test_a_full_destination_is_tried_later(self) -> None:
        self.run(_full)

    def test_opening_and_closing_leaves_nothing_behind(self) -> None:
        self.run(_leaks)

    def test_wrong_credentials_are_an_error_that_tells_no_secret(self) -> None:
        self.run(_credentials)

    def test_it_says_whether_it_is_well(self) -> None:
        self.run(_checks)


def transport_conformance(broker: Callable[[], Broker]) -> type[Any]:
    """A class of tests for one kind of broker. `broker` is called for each test; it may return the same one."""

    class Tests(Conformance):
        __test__ = True

        def broker(self) -> Broker:
            return broker()

    return Tests


async def _stores(server: Broker, transport: Transport) -> None:
    to = await _destination(server, "stores")
    messages = [_message(to, n, f"k{n % 50}") for n in range(1, _fewer(server, 301))]
    sender = Sender(transport)
    await sender.send(messages)
    stored = await server.read(to)
    assert {one.id: _data(one.body) for one in stored} == {m.id: _data(m.body) for m in messages}
    assert len(stored) == len(messages)


async def _orders(server: Broker, transport: Transport) -> None:
    to = await _destination(server, "orders")
    messages = [_message(to, n, f"k{n % 7}") for n in range(1, _fewer(server, 141))]
    await Sender(transport).send(messages)
    _check_order(await server.read(to), messages)


async def _repeats(server: Broker, transport: Transport) -> None:
    to = await _destination(server, "repeats")
    messages = [_message(to, n, f"k{n}") for n in range(1, 4)]
    sender = Sender(transport)
    await sender.send(messages)
    await sender.close()
    again = Sender(transport)
    await again.send(messages)
    stored = await server.read(to)
    kept = transport.capabilities.dedup not in ("none", "connection")
    assert len(stored) == (3 if kept else 6)
    _check_order(stored, messages)


async def _killed(server: Broker, transport: Transport) -> None:
    """Once while a batch is on its way, and once between two."""
    to = await _destination(server, "killed")
    keys = [f"k{n % 5}" for n in range(60)] + [f"one{n}" for n in range(_fewer(server, 200))]
    messages = [_message(to, n, key) for n, key in enumerate(keys, 1)]
    sender = Sender(transport)
    await sender.once([])
    cutting: list[asyncio.Task[None]] = []

    async def cut() -> None:
        await asyncio.sleep(0.001)
        await server.kill()
        await server.start()

    async def between(n: int) -> None:
        if n == 0:
            cutting.append(asyncio.create_task(cut()))
        if n == 5:
            await asyncio.gather(*cutting)
            await server.kill()
            outcomes = await sender.once([messages[0]])
            assert not isinstance(outcomes[0], Confirmed | Refused), "nobody is there"
            await server.start()

    await sender.send(messages, between=between)
    await asyncio.gather(*cutting)
    _check_order(await server.read(to), messages)


async def _frozen(server: Broker, transport: Transport) -> None:
    to = await _destination(server, "frozen")
    messages = [_message(to, n, f"k{n % 3}") for n in range(1, 31)]
    sender = Sender(transport, timeout=1.0)

    async def between(n: int) -> None:
        if n == 1:
            before = sender.unknown
            await server.freeze()
            async with asyncio.timeout(_PATIENT):
                outcomes = await sender.once([messages[-1]])
                await sender.close()
            assert isinstance(outcomes[0], RetryLater), outcomes[0]
            assert outcomes[0].unknown
            assert sender.unknown == before + 1
            await server.thaw()
            sender.timeout = 10.0

    # The one that is tried while the server is frozen is the last of its key: it is not to come before the others.
    last = messages.pop()
    messages.append(last)
    capable = transport.capabilities
    if capable.order == "destination" or capable.in_flight == "prefix":
        messages[-1] = last = _message(to, 31, "alone")
    await sender.send(messages[:-1])
    await sender.send([last], between=lambda n: between(n + 1))
    _check_order(await server.read(to), messages)


async def _slow(server: Broker, transport: Transport) -> None:
    """Slow is not dead: nothing is given up, sent twice or passed by another of its key."""
    slow = _optional(server, "slow")
    to = await _destination(server, "slow")
    messages = [_message(to, n, f"k{n % 5}") for n in range(1, _fewer(server, 31))]
    sender = Sender(transport, timeout=_PATIENT)
    await sender.once([])
    await slow()
    await sender.send(messages)
    assert sender.unknown == 0, "it was given up"
    await server.thaw()
    stored = await server.read(to)
    assert len(stored) == len(messages)
    _check_order(stored, messages)


async def _missing(server: Broker, transport: Transport) -> None:
    nowhere = server.missing()
    if nowhere is None:
        return
    to = await _destination(server, "there")
    sender = Sender(transport)
    batch = [_message(to, 1, "a"), _message(nowhere, 2, "b"), _message(to, 3, "c")]
    outcomes = await sender.once(batch)
    assert isinstance(outcomes[1], Refused), outcomes[1]
    assert outcomes[1].reason in ("unroutable", "malformed")
    assert [type(outcome) for outcome in (outcomes[0], outcomes[2])] == [Confirmed, Confirmed]
    assert [_n(one) for one in await server.read(to)] == [1, 3]


async def _too_large(server: Broker, transport: Transport) -> None:
    to, other = await _destination(server, "large"), await _destination(server, "beside")
    most = transport.capabilities.max_bytes
    event_id = uuid4()
    room = most - len(_body(event_id, 2))
    over = OutMessage(
        str(event_id), 2, "conformance", "b", to, {"ce-id": str(event_id)}, _body(event_id, 2, room + 1)
    )
    assert len(over.body) == most + 1
    sender = Sender(transport, timeout=30.0)
    outcomes = await sender.once([_message(other, 1, "a"), over, _message(other, 3, "c")])
    assert isinstance(outcomes[1], Refused), outcomes[1]
    assert outcomes[1].reason == "too_large"
    assert isinstance(outcomes[0], Confirmed)
    await sender.send([_message(other, 4, "d")])
    assert 1 in [_n(one) for one in await server.read(other)]
    assert list(await server.read(to)) == []


async def _full(server: Broker, transport: Transport) -> None:
    to = await _destination(server, "full")
    filled = await server.fill(to)
    if not filled:
        return
    to = filled if isinstance(filled, str) else to
    outcomes = await Sender(transport).once([_message(to, 1_000_000, "k")])
    assert isinstance(outcomes[0], RetryLater), outcomes[0]
    assert not outcomes[0].unknown


async def _leaks(server: Broker, transport: Transport) -> None:
    to = await _destination(server, "leaks")
    sender = Sender(transport)
    await sender.send([_message(to, 1, "k")])
    await sender.close()
    before = (len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd")))
    for n in range(2, 22):
        await sender.send([_message(to, n, "k")])
        await sender.close()
    deadline = asyncio.get_running_loop().time() + _PATIENT
    while (len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))) > before:
        assert asyncio.get_running_loop().time() < deadline, "tasks or files are left behind"
        await asyncio.sleep(0.05)


async def _credentials(server: Broker, transport: Transport) -> None:
    found = _optional(server, "wrong_credentials")()
    if found is None:
        return
    wrong, secret = found
    try:
        await wrong.open()
    except Exception as error:  # noqa: BLE001 whatever it says
        assert secret not in f"{error!r} {error}"  # noqa: PT017
    else:
        raise AssertionError("it was let in")
    finally:
        await wrong.close()


async def _checks(server: Broker, transport: Transport) -> None:
    to = await _destination(server, "checks")
    assert not (await transport.check([to])).ok, "it is not open"
    await transport.open()
    health = await transport.check([to])
    assert health.ok, health.detail
    nowhere = server.missing()
    if nowhere is not None:
        assert not (await transport.check([nowhere])).ok
