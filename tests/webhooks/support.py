"""A server on loopback that does what a test says, in a thread of its own."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.conftest import QUICK

from holdfast import Egress, Endpoint, Holdfast, StandardWebhooks, Webhooks
from holdfast.settings import Settings
from holdfast.testing import Kit

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
STEADY = Settings(
    **{**{f: getattr(QUICK, f) for f in QUICK.__dataclass_fields__}, "dead_after": 5.0, "lease": 10.0}
)


def reply(status: int, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {status} Reason", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass(slots=True)
class Request:
    path: str
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter = field(repr=False)

    @property
    def data(self) -> Any:
        return json.loads(self.body)["data"]


Answer = Callable[[Request], bytes | Awaitable[bytes | None] | None]


class Site:
    """Notes every request, and replies as `answer` says; None: the connection is cut."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answer: Answer = lambda _: OK
        self.at_once = 0
        self.most_at_once = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self.port = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait(60)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.rstrip().split("\r\n")
                headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                request = Request(first.split()[1], headers, body, writer)
                self.requests.append(request)
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
                try:
                    found = self.answer(request)
                    if asyncio.iscoroutine(found):
                        found = await found
                finally:
                    self.at_once -= 1
                if found is None:
                    return
                assert isinstance(found, bytes)
                writer.write(found)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def url(self, path: str = "/hooks") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    @property
    def egress(self) -> Egress:
        # Longer than any test: one that wants a timeout says so.
        return Egress(allow_networks=["127.0.0.0/8"], allow_http=True, ports=[self.port], timeout=300)

    def of(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.path == path]

    def reset(self) -> None:
        self.requests = []
        self.answer = lambda _: OK
        self.most_at_once = 0

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


def hooks_of(app: Holdfast, site: Site, **options: Any) -> Webhooks:
    """Webhooks that may call the site."""
    return app.webhooks(**{"on": ["order.*"], "egress": site.egress, **options})


def verified(request: Request, *secrets: str) -> str:
    """The id of a request, verified as a receiver does it."""
    from datetime import UTC, datetime

    headers = {name: [value] for name, value in request.headers.items()}
    return StandardWebhooks(list(secrets)).verify(headers, request.body, datetime.now(UTC)).message_id


def state(kit: Kit, endpoint: Endpoint) -> dict[str, Any]:
    """The row of an endpoint with its health."""
    (row,) = kit.sql(
        "SELECT * FROM holdfast.webhook_endpoints e JOIN holdfast.webhook_health h ON h.endpoint_id = e.id WHERE e.id = %s",
        [endpoint.id],
    )
    return row


def held(kit: Kit) -> dict[str, dict[str, Any]]:
    """The keys that are held, by key."""
    query = "SELECT partition_key, least(until, '9999-01-01') AS until, held_at, reason, trial FROM holdfast.key_holds"
    return {row["partition_key"]: row for row in kit.sql(query)}
