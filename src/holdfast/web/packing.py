"""Pages and documents are compressed for clients that accept it. Streams and small replies are not."""

import gzip

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_KINDS = ("text/html", "application/json", "application/problem+json")
_SMALL = 1000  # bytes
_LEVEL = 1  # of 9: a page of 70 kB is a seventh of that after a millisecond


class Packed:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or "gzip" not in Headers(scope=scope).get("accept-encoding", ""):
            await self._app(scope, receive, send)
            return
        start: Message | None = None  # kept back until its body is known

        async def packed(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and _may(message):
                start = message
                return
            if start is not None:
                head, start = start, None
                if not message.get("more_body", False):
                    message = _pack(head, message)
                await send(head)
            await send(message)

        await self._app(scope, receive, packed)


def _may(start: Message) -> bool:
    headers = Headers(raw=start["headers"])
    kind = headers.get("content-type", "").partition(";")[0]
    return kind in _KINDS and "content-encoding" not in headers


def _pack(start: Message, message: Message) -> Message:
    headers = MutableHeaders(scope=start)
    headers.add_vary_header("accept-encoding")
    body: bytes = message.get("body", b"")
    if len(body) < _SMALL:
        return message
    small = gzip.compress(body, _LEVEL, mtime=0)
    headers["content-encoding"] = "gzip"
    headers["content-length"] = str(len(small))
    return {**message, "body": small}
