"""An app that a test serves in a process of its own: `uvicorn tests.receiver.serving:asgi`."""

from typing import Any

from tests.receiver.support import SECRET

from holdfast import Holdfast, ReceivedMessage, StandardWebhooks

app = Holdfast()


@app.receive("shop", dict[str, Any], verify=StandardWebhooks(SECRET), patience=60, max_bytes=65_536)
def paid(message: ReceivedMessage[dict[str, Any]]) -> None: ...


asgi = paid.asgi
