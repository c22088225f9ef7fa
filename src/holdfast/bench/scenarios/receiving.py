"""The receiver of `boundaries`: new messages, signed and each with a job, beside an empty ASGI app in the same server."""

import asyncio
import importlib.util
import os
import sys
import time
import uuid

from ...errors import HoldfastError
from ...model.signing import signature_header
from .. import brokers
from ..context import Bench

AT_ONCE = 32  # requests
BODY = b'{"type":"order.paid","timestamp":"2026-01-01T00:00:00Z","data":{"order_id":1,"cents":995}}'


def run(bench: Bench) -> None:
    if importlib.util.find_spec("uvicorn") is None:
        bench.say("boundaries: uvicorn is not installed, the receiver is not measured")
        return
    count, port = max(bench.sizes.jobs // 10, 200), brokers.free_port()
    command = [sys.executable, "-m", "uvicorn", "holdfast.bench.receiver_app:asgi", "--port", str(port)]
    with bench.database() as dsn:
        env = {**os.environ, "HOLDFAST_DATABASE_URL": dsn}
        with brokers.started([*command, "--host", "127.0.0.1", "--log-level", "error"], port, env):
            for path in ("/empty", "/paid"):  # connections, plans
                asyncio.run(post(port, requests(path, 100), (202, 204)))
            empty = asyncio.run(post(port, requests("/empty", count), (204,)))
            new = asyncio.run(post(port, requests("/paid", count), (202,)))
    bench.add("boundaries", "receiver", "requests/s", new)
    bench.add("boundaries", "receiver-empty", "requests/s", empty)
    bench.say(f"boundaries receiver: {new:,.0f} new messages/s, an empty app {empty:,.0f}")


def requests(path: str, count: int) -> list[bytes]:
    """Signed requests, made beforehand: the same for both."""
    from ..receiver_app import SECRET

    found, at = [], int(time.time())
    for _ in range(count):
        name = str(uuid.uuid4())
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"webhook-id: {name}\r\nwebhook-timestamp: {at}\r\n"
            f"webhook-signature: {signature_header([SECRET], name, at, BODY)}\r\n"
            f"Content-Length: {len(BODY)}\r\n\r\n"
        )
        found.append(head.encode() + BODY)
    return found


async def post(port: int, made: list[bytes], wanted: tuple[int, ...]) -> float:
    """Requests in a second, over connections that are kept."""
    left = iter(made)

    async def some() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for one in left:
            writer.write(one)
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head[9:12])
            if status not in wanted:
                raise HoldfastError(f"the receiver said {status}")
            if b"content-length:" in head.lower():
                await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    return len(made) / (time.perf_counter() - began)
