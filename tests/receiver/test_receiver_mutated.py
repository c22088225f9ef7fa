"""Requests that were changed on the way: never a 2xx, never a 500, and nothing is written."""

import random
from typing import Any

from tests.receiver.support import SECRET, Headers, body_of, post, standard

from holdfast import Holdfast, ReceivedMessage, StandardWebhooks, telemetry
from holdfast.testing import Kit

REFUSED = {400, 401, 405, 413, 415}


def mutated(rng: random.Random, headers: Headers, body: bytes) -> tuple[Headers, bytes, str]:
    """One change, anywhere in what is signed or in what signs it."""
    method = "POST"
    choice = rng.randrange(8)
    headers = list(headers)
    if choice < 3:  # a byte of the body
        at = rng.randrange(len(body))
        other = bytes([body[at] ^ rng.randrange(1, 256)])
        body = rng.choice([body[:at] + other + body[at + 1 :], body[:at], body + other, body[at:] * 2])
    elif choice < 6:  # a header: changed, cut, doubled, gone
        at = rng.randrange(1, len(headers))
        name, value = headers[at]
        k = rng.randrange(len(value))
        kind = rng.randrange(5)
        junk = "".join(chr(rng.choice([0, 9, 43, 44, 46, 61, 127, 200, 255])) for _ in range(5))
        changed = [
            value[:k],
            value[:k] + chr((ord(value[k]) + 1) % 128) + value[k + 1 :],
            value + junk,
            junk,
            value,
        ]
        headers[at] = (name, changed[kind])
        if kind == 4:
            headers.append((name, value)) if rng.random() < 0.5 else headers.pop(at)
    elif choice == 6:
        headers[0] = (
            "content-type",
            rng.choice(["text/plain", "", "application/jsonx", "\x00", "multipart/form-data"]),
        )
    else:
        method = rng.choice(["GET", "PUT", "DELETE", "HEAD", "PATCH", "post", ""])
    return headers, body, method


async def test_ten_thousand_mutated_requests_are_refused(app: Holdfast, akit: Kit) -> None:
    @app.receive("shop", dict[str, Any], verify=StandardWebhooks(SECRET))
    def paid(message: ReceivedMessage[dict[str, Any]]) -> None: ...

    faults: list[telemetry.Event] = []
    stop = telemetry.subscribe(lambda e: faults.append(e) if e.name == "received.unavailable" else None)
    rng = random.Random(20261117)
    body = body_of(order_id=1, text="é", nested={"a": [1, 2.5, None]})
    good = standard(body)
    seen: set[int] = set()
    for n in range(10_000):
        headers, changed, method = mutated(rng, good, body)
        if (headers, changed, method) == (good, body, "POST"):
            continue
        reply = await post(paid.asgi, headers, changed, method=method)
        assert reply.status in REFUSED, (n, headers, changed, method, reply)
        seen.add(reply.status)
    stop()
    assert seen >= {400, 401, 405, 415}
    assert faults == [], "none of them was a fault of ours"
    assert akit.jobs() == []
    assert (await post(paid.asgi, good, body)).status == 202
