"""The receiver in the frameworks: mounted as an ASGI app, or called from a view, on the view's own transaction."""

from collections.abc import Callable
from typing import Any

import httpx
import litestar
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from fastapi import FastAPI
from flask import Flask, request
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from tests.django_app.setting_up import set_up
from tests.guests.django_kind import DjangoConnection
from tests.guests.kinds import ORDERS, engine_url
from tests.receiver.support import SECRET, body_of, standard

from holdfast import Holdfast, ReceivedMessage, Receiver, StandardWebhooks
from holdfast.testing import Kit

BODY = body_of(order_id=1)


def receiver_of(app: Holdfast) -> Receiver[dict[str, Any]]:
    @app.receive("shop", dict[str, Any], verify=StandardWebhooks(SECRET), patience=600)
    def paid(message: ReceivedMessage[dict[str, Any]]) -> None: ...

    return paid


def starlette_app(receiver: Receiver[Any]) -> Any:
    return Starlette(routes=[Mount("/hooks/shop", app=receiver.asgi)])


def fastapi_app(receiver: Receiver[Any]) -> Any:
    app = FastAPI()
    app.mount("/hooks/shop", receiver.asgi)
    return app


def litestar_app(receiver: Receiver[Any]) -> Any:
    mounted = litestar.asgi("/hooks/shop", is_mount=True, copy_scope=True)(receiver.asgi)
    return litestar.Litestar([mounted])


def django_app(receiver: Receiver[Any]) -> Any:
    """In asgi.py, before Django's own app: `get_asgi_application()` has no mounts."""
    from django.core.asgi import get_asgi_application

    set_up()
    rest = get_asgi_application()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        is_ours = scope["type"] == "http" and scope["path"].startswith("/hooks/shop")
        await (receiver.asgi if is_ours else rest)(scope, receive, send)

    return app


MOUNTS: dict[str, Callable[[Receiver[Any]], Any]] = {
    "starlette": starlette_app,
    "fastapi": fastapi_app,
    "litestar": litestar_app,
    "django": django_app,
}


async def test_it_is_mounted_in_every_asgi_framework(app: Holdfast, akit: Kit) -> None:
    receiver = receiver_of(app)
    for n, (name, make) in enumerate(MOUNTS.items()):
        transport = httpx.ASGITransport(app=make(receiver))
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            headers = dict(standard(BODY, f"{name}-1"))
            for url, status in (("/hooks/shop/", 202), ("/hooks/shop/", 200)):
                reply = await client.post(url, content=BODY, headers=headers)
                assert reply.status_code == status, (name, reply.text)
            assert (
                await client.post("/hooks/shop/", content=BODY + b" ", headers=headers)
            ).status_code == 401
            assert (await client.get("/hooks/shop/")).status_code == 405, name
        assert len(akit.jobs()) == n + 1, name


async def test_a_route_takes_it_at_exactly_its_url(app: Holdfast, akit: Kit) -> None:
    """Starlette redirects from the path of a mount to the same with a slash, and senders do not follow."""
    receiver = receiver_of(app)
    web = FastAPI(routes=[Route("/hooks/shop", receiver.asgi, methods=["POST"])])
    web.mount("/mounted", receiver.asgi)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=web), base_url="http://shop") as client:
        headers = dict(standard(BODY, "exact"))
        assert (await client.post("/hooks/shop", content=BODY, headers=headers)).status_code == 202
        assert (await client.get("/hooks/shop")).status_code == 405
        assert (await client.post("/mounted", content=BODY, headers=headers)).status_code == 307
        assert (await client.post("/mounted/", content=BODY, headers=headers)).status_code == 200
    assert len(akit.jobs()) == 1


def test_a_view_of_flask_takes_it_into_its_own_transaction(app: Holdfast, kit: Kit) -> None:
    kit.sql(ORDERS)
    receiver = receiver_of(app)
    engine = create_engine(engine_url("psycopg", kit.url))
    flask_app = Flask(__name__)

    @flask_app.post("/hooks/shop")
    def hook() -> tuple[str, int]:
        body = request.get_data(cache=False)
        with Session(engine) as session, session.begin():
            receipt = receiver.accept(request.headers, body, conn=session)
            if receipt.outcome == "new":
                session.execute(text("INSERT INTO orders VALUES (1, 'hook')"))
        return receipt.text, receipt.status

    client = flask_app.test_client()
    for status in (202, 200):
        assert client.post("/hooks/shop", data=BODY, headers=standard(BODY)).status_code == status
    assert client.post("/hooks/shop", data=BODY + b" ", headers=standard(BODY)).status_code == 401
    engine.dispose()
    assert (len(kit.jobs()), len(kit.sql("SELECT * FROM orders"))) == (1, 1)


def test_a_view_of_django_takes_it_into_its_own_transaction(app: Holdfast, kit: Kit) -> None:
    receiver = receiver_of(app)
    kind = DjangoConnection(kit.url)
    kind.open()

    def hook(request: HttpRequest) -> HttpResponse:
        with transaction.atomic(using=kind.alias):
            receipt = receiver.accept(request.headers, request.body, conn=kind.conn)
        return HttpResponse(receipt.text, status=receipt.status)

    def sent(body: bytes) -> int:
        headers = dict(standard(BODY))
        kind = headers.pop("content-type")
        return hook(RequestFactory().post("/", data=body, content_type=kind, headers=headers)).status_code

    try:
        assert [sent(BODY), sent(BODY), sent(BODY + b" ")] == [202, 200, 401]
    finally:
        kind.close()
    assert len(kit.jobs()) == 1
