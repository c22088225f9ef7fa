"""The app of scenario `web`: `uvicorn holdfast.bench.web_app:asgi`. The request names its user."""

from starlette.requests import Request

from ..app import Holdfast
from ..web import Identity, holdfast_web


def who(request: Request) -> Identity:
    return Identity(request.headers.get("x-bench-name", "bench"))


asgi = holdfast_web(Holdfast(), authorize=who)
