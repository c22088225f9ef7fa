"""`Idempotency-Key`: a request of a program that comes again is answered as the first time, and does nothing.

The key is kept before the act and its answer after it. Between the two is the act itself, so that a request whose answer
was lost on the way is answered, and one whose dashboard died in the middle is refused: nobody knows how far it came.
"""

import hashlib
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TypeVar

from starlette.responses import Response

from holdfast.db.faults import Forbidden, JobsBusy
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.operate.procedure import Procedure, run
from holdfast.operate.search import check_texts
from holdfast.store import requests as store
from holdfast.store.statement import Statement
from holdfast.web.calls import Call, Refusal

T = TypeVar("T")
HEADER = "idempotency-key"
_LONGEST = 200  # characters of a key


def key_of(call: Call) -> str | None:
    given = call.request.headers.getlist(HEADER)
    if not given:
        return None
    key = given[0].strip()
    if len(given) > 1 or not 1 <= len(key) <= _LONGEST:
        raise ConfigurationError(f"Idempotency-Key must be given once, with 1 to {_LONGEST} characters")
    check_texts({"Idempotency-Key": key})
    return key


async def once(call: Call, body: bytes, do: Callable[[], Awaitable[tuple[Response, bytes]]]) -> Response:
    """`do` returns its answer, and what of it may be kept."""
    key = key_of(call)
    if key is None:
        return (await do())[0]
    operator, who = call.site.operator(call.actor), call.who.name
    digest = hashlib.sha256(call.request.url.path.encode() + b"\0" + body).hexdigest()
    if not await operator.arun(_run(store.begin_request(who, key, digest))):
        return _again(await operator.arun(_run(store.find_request(who, key))), digest)
    try:
        answer, kept = await do()
    except (HoldfastError, Refusal) as error:
        if isinstance(error, ConfigurationError | Forbidden | JobsBusy | Refusal):  # nothing was changed
            await operator.arun(_run(store.forget_request(who, key)))
        raise
    await operator.arun(_run(store.end_request(who, key, kept.decode())))
    return answer


def _run(statement: Statement[T]) -> Procedure[T]:
    return (yield from run(lambda: statement))


def _again(known: store.Request | None, digest: str) -> Response:
    if known is None or (known.digest == digest and known.said is None):
        raise Refusal(
            HTTPStatus.CONFLICT,
            "a request with this Idempotency-Key is in progress, or was cut off. The audit shows what was done",
        )
    if known.digest != digest:
        raise Refusal(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "this Idempotency-Key was used for another request. Take a new key for a new request",
        )
    return Response(known.said, media_type="application/json", headers={"idempotent-replayed": "true"})
