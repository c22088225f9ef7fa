"""The tests of the conformance suite that break the server, or the connection to it."""

import asyncio

from ..transport import Confirmed, Refused, RetryLater, Transport
from .broker import PATIENT, Broker, check_order, destination_of, fewer, message_to, optional
from .sender import Sender
from .wire import Wire


async def killed(server: Broker, transport: Transport) -> None:
    """Once while a batch is on its way, and once between two."""
    to = await destination_of(server, "killed")
    keys = [f"k{n % 5}" for n in range(60)] + [f"one{n}" for n in range(fewer(server, 200))]
    messages = [message_to(to, n, key) for n, key in enumerate(keys, 1)]
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
    check_order(await server.read(to), messages)


async def frozen(server: Broker, transport: Transport) -> None:
    to = await destination_of(server, "frozen")
    messages = [message_to(to, n, f"k{n % 3}") for n in range(1, 31)]
    sender = Sender(transport, timeout=1.0)

    async def between(n: int) -> None:
        if n == 1:
            before = sender.unknown
            await server.freeze()
            async with asyncio.timeout(PATIENT):
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
        messages[-1] = last = message_to(to, 31, "alone")
    await sender.send(messages[:-1])
    await sender.send([last], between=lambda n: between(n + 1))
    check_order(await server.read(to), messages)


async def half_open(server: Broker, _: Transport) -> None:
    """Both sides believe in the connection, and no byte arrives: also not of those that are opened instead."""
    wire = Wire()
    transport: Transport = optional(server, "behind")(wire.lead_to)
    try:
        to = await destination_of(server, "halfopen")
        messages = [message_to(to, n, f"k{n % 3}") for n in range(1, 13)]
        sender = Sender(transport)
        await sender.send(messages[:6])
        wire.fall_silent()
        sender.timeout = 1.0
        for message in messages[6:8]:  # on the connection that is there, and on a new one
            async with asyncio.timeout(PATIENT):
                outcomes = await sender.once([message])
                await sender.close()
            assert isinstance(outcomes[0], RetryLater), outcomes[0]
        wire.heal()
        sender.timeout = 10.0
        await sender.send(messages[6:])
        check_order(await server.read(to), messages)
    finally:
        await transport.close()
        wire.close()


async def confirm_lost(server: Broker, _: Transport) -> None:
    """The connection is cut when the server replies: the message may be stored, and its sender does not know."""
    wire = Wire()
    transport: Transport = optional(server, "behind")(wire.lead_to)
    try:
        to = await destination_of(server, "unconfirmed")
        messages = [message_to(to, n, f"k{n % 3}") for n in range(1, 13)]
        sender = Sender(transport)
        await sender.send(messages[:6])
        wire.lose_reply()
        async with asyncio.timeout(PATIENT):
            outcomes = await sender.once([messages[6]])
            await sender.close()
        assert isinstance(outcomes[0], RetryLater), outcomes[0]
        await sender.send(messages[6:])
        stored = await server.read(to)
        check_order(stored, messages)
        if transport.capabilities.dedup not in ("none", "connection"):
            assert len(stored) == len(messages)
    finally:
        await transport.close()
        wire.close()


async def slow(server: Broker, transport: Transport) -> None:
    """Slow is not dead: nothing is given up, sent twice or passed by another of its key."""
    slow = optional(server, "slow")
    to = await destination_of(server, "slow")
    messages = [message_to(to, n, f"k{n % 5}") for n in range(1, fewer(server, 31))]
    sender = Sender(transport, timeout=PATIENT)
    await sender.once([])
    await slow()
    await sender.send(messages)
    assert sender.unknown == 0, "it was given up"
    await server.thaw()
    stored = await server.read(to)
    assert len(stored) == len(messages)
    check_order(stored, messages)
