"""Receiver: what `@app.receive(...)` makes. It takes messages over HTTP, or from any framework's view."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast
from uuid import UUID

from ... import failpoints, telemetry
from ...db.database import Database
from ...db.guests import async_guest, sync_guest
from ...errors import DatabaseError
from ...model import asgi
from ...model.asgi import ASGI, AnyHeaders, Receive, Scope, Send, by_name
from ...tasks.definition import Binding
from ...tasks.payload import shown
from ...tasks.producer import AppProducer
from ...tasks.task import Task
from ...tasks.writer import unknown_queue
from . import store
from .gather import Gatherer
from .intake import Intake, Receipt, counted, refused
from .message import ReceivedMessage
from .store import NewMessage, Written
from .verify import Headers, Verifier

T = TypeVar("T")
RETRY_AFTER = "5"
_STATUS = {"new": 202, "parked": 202, "repeat": 200, "differs": 200}
_TEXT = {"new": "accepted", "parked": "accepted, and set aside", "repeat": "known"}
# Over HTTP the status is enough: servers send a text as a separate packet.
_WORDLESS = {"new": Receipt(202, "new"), "repeat": Receipt(200, "repeat")}
_NONE: Mapping[str, Receipt] = {}


class Receiver(Generic[T]):
    """Takes messages of one source: `fastapi_app.mount("/hooks/stripe", paid.asgi)`, or `paid.accept(headers, body)`."""

    def __init__(
        self, task: Task[Any, Any], binding: Binding, intake: Intake, verifier: Verifier, patience: float
    ) -> None:
        self.task = task
        self._binding = binding
        self._intake = intake
        self._verifier = verifier
        self._patience = patience
        self._larger = intake.too_large().text
        self._gatherer = Gatherer(self._write)

    @property
    def source(self) -> str:
        """The name under which its messages are stored."""
        return self._intake.target.source

    @property
    def func(self) -> Callable[..., object]:
        """The function as it was written."""
        return self.task.func

    @property
    def asgi(self) -> ASGI:
        """An ASGI app for any path: a mount, or the route that the sender posts to."""
        return asgi.App(self._asgi)

    def call(self, message: ReceivedMessage[T]) -> Any:
        """Run the handler here and now, without a database: `await paid.call(message)` for an async one."""
        signature = self.task.definition.signature
        if signature.injected:
            kinds = " and ".join(kind.__name__ for kind in signature.injected.values())
            raise TypeError(
                f"{self.task.name} takes an injected {kinds}, which call() cannot supply. Call its func with your own"
            )
        return signature.func(message)

    def accept(self, headers: AnyHeaders, body: bytes, *, conn: object = None) -> Receipt:
        """Verify a request and write its job, in the transaction of `conn` or in a new one. Reply with the receipt's status
        after the commit. While the database is unreachable the receipt says 503; errors on `conn` are raised."""
        guest = None if conn is None else sync_guest(conn, "accept", "aaccept")
        taken = self._taken(by_name(headers), body)
        if isinstance(taken, Receipt):
            return taken
        if guest is not None:
            return self._receipt(guest.run(store.receive_many(self._intake.target, [taken]))[0])
        try:
            written = self._database.run(lambda: store.receive_many(self._intake.target, [taken]))
            return self._receipt(written[0])
        except DatabaseError as error:
            return self._away(error)

    async def aaccept(self, headers: AnyHeaders, body: bytes, *, conn: object = None) -> Receipt:
        """`await paid.aaccept(headers, body)`: see accept(). Without `conn`, requests share transactions."""
        guest = None if conn is None else async_guest(conn, "aaccept", "accept")
        taken = self._taken(by_name(headers), body)
        if isinstance(taken, Receipt):
            return taken
        if guest is not None:
            return self._receipt((await guest.arun(store.receive_many(self._intake.target, [taken])))[0])
        try:
            return self._receipt(await self._gatherer.put(taken, self._patience))
        except DatabaseError as error:
            return self._away(error)

    @property
    def _database(self) -> Database:
        return cast(AppProducer, self._binding.require(self.task.name)).database

    def _taken(self, headers: Headers, body: bytes, *, has_right_type: bool = False) -> NewMessage | Receipt:
        if not isinstance(body, bytes):
            if not isinstance(body, bytearray | memoryview):
                raise TypeError(f"body must be the bytes of the request as they came, not {shown(body)}")
            body = bytes(body)
        now = self._database.clock.now()
        wrong = None if has_right_type else self._intake.wrong_type(headers, self._verifier)
        taken = wrong or self._intake.take(self._verifier, headers, body, now)
        if isinstance(taken, Receipt) and taken.outcome == "refused":
            counted(self.source, "refused")
            telemetry.emit(
                "received.refused",
                level=logging.DEBUG,
                source=self.source,
                status=taken.status,
                reason=taken.text,
            )
        return taken

    async def _write(self, messages: Sequence[NewMessage]) -> list[Written]:
        written = await self._database.arun(lambda: store.receive_many(self._intake.target, messages))
        failpoints.point("received.committed")
        return written

    def _receipt(self, written: Written, usual: Mapping[str, Receipt] = _NONE) -> Receipt:
        """`usual`: for outcomes whose job nobody asks for."""
        outcome = written.outcome
        if (found := usual.get(outcome)) is not None:
            counted(self.source, outcome)
            return found
        if outcome == "queue":
            raise unknown_queue(self._intake.target.queue, [])
        if outcome in ("differs", "parked"):
            telemetry.emit(
                f"received.{outcome}", level=logging.WARNING, source=self.source, job_id=written.job_id
            )
        counted(self.source, outcome)
        status, job_id = _STATUS[outcome], None if written.job_id is None else UUID(written.job_id)
        if outcome == "differs":
            return Receipt(status, "conflict", job_id, "known by this id, with another body")
        kept: Any = outcome
        return Receipt(status, kept, job_id, _TEXT[outcome])

    def _away(self, error: Exception) -> Receipt:
        counted(self.source, "unavailable")
        telemetry.emit(
            "received.unavailable",
            level=logging.WARNING if isinstance(error, DatabaseError) else logging.ERROR,
            source=self.source,
            error=f"{type(error).__name__}: {error}",
        )
        return refused(503, "not now: try again later", **{"retry-after": RETRY_AFTER})

    # ASGI ----------------------------------------------------------------------------------------------------------------

    async def _asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        if await asgi.not_http(scope, receive, send):
            return
        try:
            receipt = await self._reply(scope, receive)
        except asgi.ClientGone:
            return
        headers = {"content-type": "text/plain; charset=utf-8", **receipt.headers} if receipt.text else {}
        await asgi.respond(scope, send, receipt.status, receipt.text.encode(), headers)

    async def _reply(self, scope: Scope, receive: Receive) -> Receipt:
        if scope["method"] != "POST":
            return refused(405, "send a POST", allow="POST")
        headers = asgi.headers_of(scope)
        if (wrong := self._intake.wrong_type(headers, self._verifier)) is not None:
            return wrong
        try:
            body = await asgi.read_body(headers, receive, self._intake.max_bytes, self._larger)
        except asgi.BadBody as error:
            return refused(error.status, str(error))
        try:
            taken = self._taken(headers, body, has_right_type=True)
            if isinstance(taken, Receipt):
                return taken
            written = await self._gatherer.put(taken, self._patience)
            return self._receipt(written, _WORDLESS)
        except Exception as error:  # noqa: BLE001 no such queue, or a defect of Holdfast: the sender should try again
            return self._away(error)
