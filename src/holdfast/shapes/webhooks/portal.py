"""`hooks.portal(authorize)`: a JSON API that a product puts in front of its own tenants. Plain ASGI, for any path.

`authorize(scope)` returns the tenant, or None: 401. Nothing else decides whose rows are visible. A request that changes
something is one transaction: its idempotency key, the act, its row of the audit, and the reply for repeats of the key.
"""

import base64
import hashlib
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from ... import telemetry
from ...db.database import Database
from ...errors import (
    ConfigurationError,
    DatabaseError,
    EventsGone,
    InvalidMessage,
    UnknownEndpoint,
    UnknownQueue,
)
from ...model import asgi
from ...model.actor import Actor
from ...model.asgi import ASGI, Receive, Scope, Send
from ...model.sealing import Sealed, key_ring
from ...model.strict_json import is_json, media_type, parse_json
from ...model.text import storable
from ...operate.refusal import Refused
from ...store.statement import Flow
from . import store_acts
from .acts import Acts
from .portal_calls import CALLS, Call, Given, NotFound, PortalLimits
from .spec import Spec

Authorize = Callable[[Scope], Awaitable[str | None]]
MOST_BYTES = 64 * 1024  # of a request
RETRY_AFTER = "5"
_KEY = re.compile("[!-~]{1,256}")
_STATUS = {"endpoints": 409, "ranges": 429}  # of a refusal; else 409


class Reply(NamedTuple):
    status: int
    body: bytes
    headers: Mapping[str, str] = {}


class _Known(Exception):
    """The key was used before."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        super().__init__()
        self.found = found


def fault(status: int, code: str, text: str, **headers: str) -> Reply:
    body = {"error": {"code": code, "message": storable(text, 1000)}}
    return Reply(status, json.dumps(body).encode(), headers)


class Portal:
    def __init__(
        self, spec: Spec, database: Callable[[], Database], authorize: Authorize, limits: PortalLimits
    ) -> None:
        self._spec = spec
        self._database = database
        self._authorize = authorize
        self._limits = limits

    @property
    def asgi(self) -> ASGI:
        return asgi.App(self._asgi)

    async def _asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        if await asgi.not_http(scope, receive, send):
            return
        try:
            reply = await self._reply(scope, receive)
        except asgi.ClientGone:
            return
        headers = {"content-type": "application/json", "cache-control": "no-store", **reply.headers}
        await asgi.respond(scope, send, reply.status, reply.body, headers)

    async def _reply(self, scope: Scope, receive: Receive) -> Reply:
        try:
            tenant = await self._authorize(scope)
            if tenant is None:
                return fault(401, "unauthorized", "not authenticated")
            if not isinstance(tenant, str) or not 1 <= len(tenant.encode()) <= 200:
                raise TypeError("authorize() must return the tenant as text of 1 to 200 bytes, or None")
            return await self._for(tenant, scope, receive)
        except asgi.ClientGone:
            raise
        except asgi.BadBody as error:
            return fault(error.status, "body", str(error))
        except (DatabaseError, UnknownQueue) as error:
            telemetry.emit(
                "webhook.portal_away", level=logging.WARNING, error=f"{type(error).__name__}: {error}"
            )
            return fault(503, "unavailable", "not now: try again later", **{"retry-after": RETRY_AFTER})
        except Exception as error:  # noqa: BLE001 a defect of Holdfast, or of authorize(): the caller learns no details
            telemetry.emit("webhook.portal_failed", level=logging.ERROR, error=type(error).__name__)
            telemetry.log.error("the portal failed", exc_info=error)
            return fault(500, "internal", "this is our fault, and was noted")

    async def _for(self, tenant: str, scope: Scope, receive: Receive) -> Reply:
        path = scope["path"]
        found = [(call, match) for call in CALLS if (match := call.path.fullmatch(path)) is not None]
        if not found:
            return fault(404, "not_found", "there is nothing here")
        allowed = sorted({call.method for call, _ in found})
        asked_for = [(call, match) for call, match in found if call.method == scope["method"]]
        if not asked_for:
            return fault(405, "method", f"send {' or '.join(allowed)}", allow=", ".join(allowed))
        headers = asgi.headers_of(scope)
        call, match = asked_for[0]
        try:
            body = await self._body(headers, receive)
            given = Given(tenant, match.groupdict(), scope.get("query_string", b""), body)
            if call.changes:
                return await self._change(call, given, headers, _digest(call, match, body))
            return await self._act(call, given)
        except (NotFound, UnknownEndpoint) as error:
            return fault(404, "not_found", str(error))
        except InvalidMessage as error:
            return fault(400, "invalid", str(error))
        except EventsGone as error:
            return fault(410, "gone", str(error))
        except Refused as error:
            return fault(_STATUS.get(error.code, 409), error.code, str(error))
        except ConfigurationError as error:
            return fault(400, "invalid", str(error))

    async def _body(self, headers: Mapping[str, list[str]], receive: Receive) -> bytes:
        larger = f"the body is larger than {MOST_BYTES:,} bytes"
        body = await asgi.read_body(headers, receive, MOST_BYTES, larger)
        if body and not is_json(media_type((headers.get("content-type") or [""])[0])):
            raise asgi.BadBody(415, "send application/json")
        return body

    def _acts(self, tenant: str) -> Acts:
        return Acts(self._spec, Actor(f"tenant {tenant}", "api"))

    async def _act(self, call: Call, given: Given) -> Reply:
        made = call.act(self._acts(given.tenant), given, self._limits)
        value = await self._database().arun(made)
        return Reply(call.status, _json(call.show(value, given)) if call.status != 204 else b"")

    async def _change(
        self, call: Call, given: Given, headers: Mapping[str, list[str]], digest: bytes
    ) -> Reply:
        keys = headers.get("idempotency-key", [])
        if call.method == "POST" and (len(keys) > 1 or not all(_KEY.fullmatch(key) for key in keys)):
            raise InvalidMessage(
                "Idempotency-Key is one text of 1 to 256 printable characters without spaces"
            )
        key = keys[0] if keys and call.method == "POST" else None
        if (
            wait := await self._database().arun(
                lambda: store_acts.take_write(given.tenant, self._limits.writes, key)
            )
        ) > 0:
            seconds = str(int(wait) + 1)
            text = f"{self._limits.writes} changes in a minute are allowed. Try again in {seconds} s"
            return fault(429, "rate", text, **{"retry-after": seconds})
        act = call.act(self._acts(given.tenant), given, self._limits)

        def flow() -> Flow[bytes]:
            if (
                key is not None
                and (known := (yield from store_acts.request(given.tenant, key, digest))) is not None
            ):
                raise _Known(known)
            value = yield from act()
            body = b"" if call.status == 204 else _json(call.show(value, given))
            if key is not None:
                sealed = key_ring().seal(body.decode(), _place(given.tenant, key))
                yield from store_acts.replied(given.tenant, key, digest, call.status, sealed)
            return body

        try:
            return Reply(call.status, await self._database().arun(flow))
        except _Known as known:
            return _again(known.found, given.tenant, key or "")


def _again(found: Mapping[str, Any], tenant: str, key: str) -> Reply:
    """The reply that the key got before."""
    if found.get("differs"):
        return fault(422, "key_used", "this Idempotency-Key was used for another request. Use a new one")
    sealed = Sealed(found["key_id"], base64.b64decode(found["reply"]))
    body = key_ring().open(sealed, _place(tenant, key))
    return Reply(found["status"], body.encode(), {"idempotent-replayed": "true"})


def _place(tenant: str, key: str) -> bytes:
    return f"holdfast reply\0{tenant}\0{key}".encode()


def _digest(call: Call, match: re.Match[str], body: bytes) -> bytes:
    which = json.dumps([call.name, sorted(match.groupdict().items())])
    return hashlib.sha256(which.encode() + b"\0" + body).digest()


def _json(value: object) -> bytes:
    return json.dumps(value, default=_plain, ensure_ascii=False).encode()


def _plain(value: object) -> object:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(type(value).__name__)


__all__ = ["Authorize", "Portal", "PortalLimits", "parse_json"]
