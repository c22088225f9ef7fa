"""Pages are sent packed to whoever can unpack them, and nothing else is touched."""

import gzip
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from holdfast.web.guard import CSRF, Csrf
from holdfast.web.packing import Packed

PAGE = b"<p>a page of many words that repeat</p>" * 100


async def ask(kind: str, parts: list[bytes], accepts: str, **headers: str) -> tuple[dict[str, str], bytes]:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        lines = [(b"content-type", kind.encode()), (b"content-length", str(sum(map(len, parts))).encode())]
        lines += [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": lines})
        for n, part in enumerate(parts, 1):
            await send({"type": "http.response.body", "body": part, "more_body": n < len(parts)})

    said: list[Message] = []

    async def send(message: Message) -> None:
        said.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    scope = {"type": "http", "headers": [(b"accept-encoding", accepts.encode())]}
    await Packed(app)(scope, receive, send)
    found = {name.decode(): value.decode() for name, value in said[0]["headers"]}
    return found, b"".join(message.get("body", b"") for message in said[1:])


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/json", "application/problem+json"])
async def test_a_page_is_packed_for_who_can_unpack_it(kind: str) -> None:
    headers, body = await ask(kind, [PAGE], "br, gzip")
    assert (headers["content-encoding"], headers["vary"]) == ("gzip", "accept-encoding")
    assert headers["content-length"] == str(len(body))
    assert len(body) < len(PAGE) / 5
    assert gzip.decompress(body) == PAGE
    headers, body = await ask(kind, [PAGE], "identity")
    assert ("content-encoding" in headers, body) == (False, PAGE)


async def test_streams_small_ones_and_what_is_packed_already_are_left_alone() -> None:
    for kind, parts in (
        ("text/event-stream", [PAGE]),
        ("text/html", [PAGE, PAGE]),
        ("text/html", [b"short"]),
    ):
        headers, body = await ask(kind, parts, "gzip")
        assert ("content-encoding" in headers, body) == (False, b"".join(parts))
        assert headers["content-length"] == str(len(body))
    headers, body = await ask("text/html", [PAGE], "gzip", content_encoding="br")
    assert (headers["content-encoding"], body) == ("br", PAGE)


def test_the_mark_of_a_form_is_another_one_on_every_page() -> None:
    csrf = Csrf(b"secret")
    marks = {csrf.mark("nonce", "mara") for _ in range(20)}
    assert len(marks) == 20
    request = Request({"type": "http", "headers": [(b"cookie", f"{CSRF}=nonce".encode())]})
    assert all(csrf.fits(request, "mara", mark) for mark in marks)
    mark = marks.pop()
    salt = mark.partition(".")[0]
    for wrong in ("", ".", salt, f"{salt}.", f"x{mark}", mark[:-1], f".{mark.partition('.')[2]}"):
        assert not csrf.fits(request, "mara", wrong), wrong
    assert not csrf.fits(request, "bo", mark)
    assert not Csrf(b"other").fits(request, "mara", mark)
    assert not csrf.fits(Request({"type": "http", "headers": []}), "mara", mark)
