"""One suite for every transport, against the real server: `class TestMine(transport_conformance(MyBroker)): ...`

docs/transports.md has what each test means. A broker is a server that the tests may kill, freeze and fill.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from uuid import uuid4

from ..transport import Confirmed, OutMessage, Refused, RetryLater, Transport
from . import breaking
from .broker import (
    PATIENT,
    Broker,
    body_of,
    check_order,
    data_of,
    destination_of,
    fewer,
    message_to,
    number_of,
    optional,
)
from .sender import Sender

T = TypeVar("T")


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
                async with asyncio.timeout(10 * PATIENT):
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
        self.run(breaking.killed)

    def test_a_frozen_server_leaves_it_open_what_was_stored(self) -> None:
        self.run(breaking.frozen)

    def test_a_connection_that_is_half_open_is_given_up(self) -> None:
        self.run(breaking.half_open)

    def test_a_confirm_that_is_lost_is_no_confirm(self) -> None:
        self.run(breaking.confirm_lost)

    def test_a_slow_server_is_waited_for(self) -> None:
        self.run(breaking.slow)

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

    def test_a_server_is_reached_over_tls_and_one_that_is_not_trusted_is_not(self) -> None:
        self.run(_tls)

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
    to = await destination_of(server, "stores")
    messages = [message_to(to, n, f"k{n % 50}") for n in range(1, fewer(server, 301))]
    sender = Sender(transport)
    await sender.send(messages)
    stored = await server.read(to)
    assert {one.id: data_of(one.body) for one in stored} == {m.id: data_of(m.body) for m in messages}
    assert len(stored) == len(messages)


async def _orders(server: Broker, transport: Transport) -> None:
    to = await destination_of(server, "orders")
    messages = [message_to(to, n, f"k{n % 7}") for n in range(1, fewer(server, 141))]
    await Sender(transport).send(messages)
    check_order(await server.read(to), messages)


async def _repeats(server: Broker, transport: Transport) -> None:
    to = await destination_of(server, "repeats")
    messages = [message_to(to, n, f"k{n}") for n in range(1, 4)]
    sender = Sender(transport)
    await sender.send(messages)
    await sender.close()
    again = Sender(transport)
    await again.send(messages)
    stored = await server.read(to)
    kept = transport.capabilities.dedup not in ("none", "connection")
    assert len(stored) == (3 if kept else 6)
    check_order(stored, messages)


async def _tls(server: Broker, _: Transport) -> None:
    trusting, stranger = optional(server, "tls")()
    to = await destination_of(server, "tls")
    messages = [message_to(to, n, f"k{n % 3}") for n in range(1, 13)]
    sender, other = Sender(trusting), Sender(stranger)
    await sender.send(messages)
    await sender.close()
    async with asyncio.timeout(PATIENT):
        outcomes = await other.once([message_to(to, 13, "k")])
        await other.close()
    assert isinstance(outcomes[0], RetryLater), outcomes[0]
    stored = await server.read(to)
    assert len(stored) == len(messages)
    check_order(stored, messages)


async def _missing(server: Broker, transport: Transport) -> None:
    nowhere = server.missing()
    if nowhere is None:
        return
    to = await destination_of(server, "there")
    sender = Sender(transport)
    batch = [message_to(to, 1, "a"), message_to(nowhere, 2, "b"), message_to(to, 3, "c")]
    outcomes = await sender.once(batch)
    assert isinstance(outcomes[1], Refused), outcomes[1]
    assert outcomes[1].reason in ("unroutable", "malformed")
    assert [type(outcome) for outcome in (outcomes[0], outcomes[2])] == [Confirmed, Confirmed]
    assert sorted(number_of(one) for one in await server.read(to)) == [1, 3], "of two keys, in any order"


async def _too_large(server: Broker, transport: Transport) -> None:
    to, other = await destination_of(server, "large"), await destination_of(server, "beside")
    most = transport.capabilities.max_bytes
    event_id = uuid4()
    room = most - len(body_of(event_id, 2))
    over = OutMessage(
        str(event_id), 2, "conformance", "b", to, {"ce-id": str(event_id)}, body_of(event_id, 2, room + 1)
    )
    assert len(over.body) == most + 1
    sender = Sender(transport, timeout=30.0)
    outcomes = await sender.once([message_to(other, 1, "a"), over, message_to(other, 3, "c")])
    assert isinstance(outcomes[1], Refused), outcomes[1]
    assert outcomes[1].reason == "too_large"
    assert isinstance(outcomes[0], Confirmed)
    await sender.send([message_to(other, 4, "d")])
    assert 1 in [number_of(one) for one in await server.read(other)]
    assert list(await server.read(to)) == []


async def _full(server: Broker, transport: Transport) -> None:
    to = await destination_of(server, "full")
    filled = await server.fill(to)
    if not filled:
        return
    to = filled if isinstance(filled, str) else to
    outcomes = await Sender(transport).once([message_to(to, 1_000_000, "k")])
    assert isinstance(outcomes[0], RetryLater), outcomes[0]
    assert not outcomes[0].unknown


async def _leaks(server: Broker, transport: Transport) -> None:
    to = await destination_of(server, "leaks")
    sender = Sender(transport)
    await sender.send([message_to(to, 1, "k")])
    await sender.close()
    before = (len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd")))
    for n in range(2, 22):
        await sender.send([message_to(to, n, "k")])
        await sender.close()
    deadline = asyncio.get_running_loop().time() + PATIENT
    while (len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))) > before:
        assert asyncio.get_running_loop().time() < deadline, "tasks or files are left behind"
        await asyncio.sleep(0.05)


async def _credentials(server: Broker, transport: Transport) -> None:
    found = optional(server, "wrong_credentials")()
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
    to = await destination_of(server, "checks")
    assert not (await transport.check([to])).ok, "it is not open"
    await transport.open()
    health = await transport.check([to])
    assert health.ok, health.detail
    nowhere = server.missing()
    if nowhere is not None:
        assert not (await transport.check([nowhere])).ok
