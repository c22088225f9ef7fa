"""What `boundaries` serves: `uvicorn holdfast.bench.receiver_app:asgi`. Below /empty nothing is done."""

from typing import Any

from ..app import Holdfast
from ..shapes.receiver.message import ReceivedMessage
from ..shapes.receiver.verify import StandardWebhooks

SECRET = "whsec_" + "c2VjcmV0" * 4  # of the bench

app = Holdfast()


@app.receive("bench", dict[str, Any], verify=StandardWebhooks(SECRET))
async def paid(message: ReceivedMessage[dict[str, Any]]) -> None: ...


async def empty(receive: Any, send: Any) -> None:
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http" and scope["path"] == "/empty":
        await empty(receive, send)
    elif scope["type"] == "http":
        await paid.asgi(scope, receive, send)
