"""The handler of a delivery's job. Everything is checked again on each attempt: endpoint, secrets, URL, address."""

import asyncio
import logging
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, cast
from uuid import UUID

from ... import failpoints, telemetry
from ...db.database import Database
from ...egress import Client, Reply, SendFailed
from ...errors import DatabaseUnavailable, SecretUnreadable
from ...follow import OtherVersion
from ...model.sealing import key_ring
from ...model.signals import Cancel, DeadLetter, Retry, Snooze
from ...model.text import describe, storable
from ...runtime.job import Job
from . import request, store
from .loading import Loader
from .spec import MOST_BODY, Spec
from .store import Ready, Stored
from .verdict import Verdict, judge

BUSY = 0.25  # seconds that the jobs of a key wait whose endpoint has no free request
SOON = AWAY = 1.0
STALE = 0.5  # seconds after which an endpoint is read again before a request
TABLE = "webhook_attempts"
ENDED = ("failed", "cancelled")
MOST_ASKED = 10_000  # endpoints that asked to wait
ASKED = "webhook asked to wait: Retry-After"


class Line:
    """The shared parts of deliveries in one event loop."""

    def __init__(self, spec: Spec, database: Callable[[], Database]) -> None:
        self.client = Client(spec.egress)
        self.loader = Loader(database)
        self._asked: OrderedDict[UUID, tuple[str, datetime]] = OrderedDict()

    def ask(self, endpoint: UUID, url: str, until: datetime) -> None:
        """The server of an endpoint has asked for no request until then."""
        self._asked[endpoint] = url, until
        self._asked.move_to_end(endpoint)
        if len(self._asked) > MOST_ASKED:
            self._asked.popitem(last=False)

    def asked(self, endpoint: UUID, url: str, now: Callable[[], datetime]) -> float:
        """Seconds for which it is to get none, unless its URL has changed."""
        of, until = self._asked.get(endpoint, (None, None))
        return (until - now()).total_seconds() if until is not None and of == url else 0.0


class Deliverer:
    def __init__(
        self,
        spec: Spec,
        database: Callable[[], Database],
        cloudevent: Callable[[Any], str],
        event: Callable[..., Any],
        sent: Callable[[Any], Any] | None = None,
    ) -> None:
        self._spec = spec
        self._database = database
        self._cloudevent = cloudevent
        self._event = event
        self._sent = sent
        self._lines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Line] = weakref.WeakKeyDictionary()
        self._backoff = {
            queue: spec.backoff(ordered=queue == store.ORDERED) for queue in (store.QUEUE, store.ORDERED)
        }

    async def _line(self) -> Line:
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is None:
            line = self._lines[loop] = Line(self._spec, self._database)
            await line.client.open()
        return line

    async def close(self) -> None:
        """Of this event loop."""
        line = self._lines.pop(asyncio.get_running_loop(), None)
        if line is not None:
            await line.client.close()

    async def deliver(self, job: Job, endpoint: UUID, event: UUID) -> None:
        """Each attempt leaves a row, whatever it ends with: it may be the trial that others wait for."""
        try:
            await self._deliver(job, endpoint, event)
        except Exception as error:  # of payload(), of an upcaster, of the database, or a defect
            self._fail(job, endpoint, f"its job was given up: {describe(error).summary}")
            raise

    async def _deliver(self, job: Job, endpoint: UUID, event: UUID) -> None:
        line = await self._line()
        try:
            async with job._rest():  # slots are for requests
                ready = await self._ready(line.loader, job.id, endpoint, event)
                if ready is not None and ready.status in ENDED and await self._reopened(job.id):
                    ready = await self._ready(line.loader, job.id, endpoint, event)
                read_at = time.monotonic()
            if ready is not None and time.monotonic() - read_at > STALE:  # it waited for its slot
                ready = await self._ready(line.loader, job.id, endpoint, event, again=_may_be_sent(ready))
        except DatabaseUnavailable:
            self._note(job, endpoint, {"kind": "waits", "delay": AWAY})
            raise Snooze(AWAY) from None
        except (
            asyncio.CancelledError
        ):  # its time is over, or the worker's: if its job ends there, so does the delivery
            self._note(job, endpoint, {"kind": "waits", "delay": SOON})
            raise
        if ready is None:
            self._note(job, endpoint, {"kind": "dropped"})
            raise Cancel("its delivery is gone")
        try:
            self._check(job, endpoint, ready, line)
            await self._attempt(job, endpoint, ready, line)
        finally:
            if ready.place is not None:
                line.loader.leave(job.id, ready.place, endpoint)

    async def _ready(
        self, loader: Loader, delivery: UUID, endpoint: UUID, event: UUID, *, again: bool = False
    ) -> Ready | None:
        """The delivery's data. A place that is released in this process is taken at once; of one that another worker
        releases nobody is notified."""
        until = time.monotonic() + BUSY
        while True:
            ready = await loader.begin(delivery, event, again=again)
            again = False
            if ready is None or not ready.busy or not await loader.left(endpoint, until - time.monotonic()):
                return ready

    async def _reopened(self, delivery: UUID) -> bool:
        """An operator has put back the job of a delivery that had ended: it continues."""
        return await self._database().arun(lambda: store.reopen(delivery))

    def _check(self, job: Job, endpoint: UUID, ready: Ready, line: Line) -> None:
        """Decides whether there is an attempt; its exception says why not."""
        if ready.status != "pending":
            raise Cancel(f"its delivery is {ready.status}")
        if ready.endpoint_status is None:
            self._drop(job, endpoint, "cancelled", "the endpoint was deleted")
        if ready.cause == "ping":  # whatever its status, and once
            return
        if ready.endpoint_status == "disabled":
            self._drop(job, endpoint, "cancelled", "the endpoint is disabled")
        if ready.endpoint_status == "paused":
            self._wait(job, endpoint, -1.0, "webhook paused")
        self._check_turn(job, endpoint, ready, line)
        if not ready.has_event or ready.event is None:
            self._drop(job, endpoint, "failed", "expired: the log no longer has the event")
        elif ready.event.data is None:
            self._drop(job, endpoint, "cancelled", "the data of the event was erased")

    def _check_turn(self, job: Job, endpoint: UUID, ready: Ready, line: Line) -> None:
        """Decides whether the attempt is due now."""
        # Of an endpoint in order one key is held, and what was claimed before is not held.
        if (left := line.asked(endpoint, ready.url, self._now)) > 0:
            self._wait(job, endpoint, left, ASKED)
        if ready.open_for > 0:
            # Its key is held already, for a trial; in an ordered endpoint each key finds that out by itself.
            held = "webhook breaker: it is open" if job.queue == store.ORDERED else None
            self._wait(job, endpoint, ready.open_for, held)
        if ready.busy:
            self._wait(job, endpoint, BUSY, "webhook busy: as many requests as it may have")
        if ready.wait > 0:
            self._wait(job, endpoint, ready.wait, "webhook rate: the next request is not due yet")

    async def _attempt(self, job: Job, endpoint: UUID, ready: Ready, line: Line) -> None:
        event = request.ping_of(ready) if ready.cause == "ping" else ready.event
        assert event is not None
        if self._sent is not None and ready.cause != "ping":
            try:
                event = cast(Stored, self._sent(event))
            except OtherVersion as error:
                self._drop(job, endpoint, "failed", str(error))
        try:
            ring = key_ring()
            secrets = request.secrets_of(ready, endpoint, ring)
            own = request.own_headers(ready, endpoint, ring)
        except SecretUnreadable as error:  # an error of Holdfast: the endpoint is not blamed
            telemetry.emit(
                "webhook.unreadable", level=logging.ERROR, endpoint=str(endpoint), error=str(error)
            )
            raise Retry(str(error), after=self._fail(job, endpoint, str(error))) from None
        body, content_type = self._body(event, ready)
        if len(body) > MOST_BODY:
            if self._spec.oversized == "fail":
                reason = f"too large: its body is {len(body):,} bytes, and {MOST_BODY:,} may be sent"
                self._drop(job, endpoint, "failed", reason)
            body, content_type = request.truncated_body(event), request.JSON
        now = self._now()
        headers = request.headers_of(str(ready.event_id), int(now.timestamp()), body, secrets, content_type)
        base = {"url": ready.url, "request": request.request_head(own, headers, len(body))}
        started = time.monotonic()
        try:
            result = await line.client.send(ready.url, body, {**own, **headers})
        except asyncio.CancelledError:
            took = round((time.monotonic() - started) * 1000)
            self._note(job, endpoint, base | {"kind": "unknown", "error": "unknown", "ms": took})
            raise
        failpoints.point("webhooks.sent")
        verdict = judge(result, ready.refused, now, control=self._spec.delivery_control)
        if telemetry.audible(logging.DEBUG):
            telemetry.emit(
                "webhook.attempted", level=logging.DEBUG, result=verdict.kind, endpoint=str(endpoint)
            )
        if verdict.wait is not None:
            line.ask(endpoint, ready.url, now + timedelta(seconds=verdict.wait))
        self._conclude(job, endpoint, base | _shown(result, keep_body=self._spec.keep_body), verdict)

    def _now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self._database().clock.offset)

    def _body(self, event: Stored, ready: Ready) -> tuple[bytes, str]:
        own = callable(self._spec.payload)  # and a ping is of no type that users know
        if self._spec.payload == "standard" or (own and ready.cause == "ping"):
            return request.standard_body(event), request.JSON
        if self._spec.payload == "cloudevents":
            return self._cloudevent(event).encode(), request.CLOUDEVENTS
        assert callable(self._spec.payload)
        return request.made_body(self._spec.payload(self._event(event, ready.era))), request.JSON

    def _conclude(self, job: Job, endpoint: UUID, row: dict[str, Any], verdict: Verdict) -> None:
        row |= {
            "kind": verdict.kind if verdict.blames else "unknown",  # it says nothing about the endpoint
            "why": verdict.why,
            "error": verdict.error,
            "detail": verdict.detail,
            "disable": verdict.disable,
        }
        if verdict.kind == "delivered":
            self._note(job, endpoint, row | {"outcome": "delivered"})
            return
        if verdict.is_final or job.attempt >= job.max_attempts:
            self._note(job, endpoint, row | {"outcome": "failed", "reason": verdict.why})
            if verdict.disable is not None:
                raise Cancel(verdict.why)
            raise DeadLetter(verdict.why)
        delay = self._backoff[job.queue].delay(job.attempt)
        if verdict.wait is not None:
            delay = max(delay, verdict.wait)
            row |= {"hold": verdict.wait, "held": ASKED}
        self._note(job, endpoint, row | {"delay": delay})
        raise Retry(verdict.why, after=delay)

    def _wait(self, job: Job, endpoint: UUID, seconds: float, held: str | None) -> NoReturn:
        """The job goes back, and no attempt is spent. Its key is held, so that no other job of it is tried; after the hold
        it runs soon, however long the hold was meant to last."""
        delay = seconds if seconds >= 0 else SOON
        hold = {"hold": seconds, "held": held} if held is not None else {}
        self._note(job, endpoint, {"kind": "waits", "delay": delay, **hold})
        raise Snooze(min(delay, SOON))

    def _fail(self, job: Job, endpoint: UUID, reason: str) -> float:
        """There was no request, and an attempt is spent. `reason`: of the delivery, if that was the last. Returns the
        seconds to the next one."""
        delay = self._backoff[job.queue].delay(job.attempt)
        self._note(job, endpoint, {"kind": "waits", "delay": delay, "reason": storable(reason, 1000)})
        return delay

    def _drop(self, job: Job, endpoint: UUID, outcome: str, reason: str) -> NoReturn:
        self._note(job, endpoint, {"kind": "dropped", "outcome": outcome, "reason": reason})
        if outcome == "failed":
            raise DeadLetter(reason)
        raise Cancel(reason)

    def _note(self, job: Job, endpoint: UUID, row: dict[str, Any]) -> None:
        """Written with the end of the attempt, in the same transaction."""
        row["delivery"], row["endpoint"] = job._grant.id_text, str(endpoint)
        row["queue"], row["key"], row["crashes"] = job.queue, job.partition_key, job.crashes
        job.record(TABLE, row)


def _may_be_sent(ready: Ready) -> bool:
    """It has its place, and its token if its endpoint has a rate."""
    waits = ready.busy or ready.wait > 0
    return ready.status == "pending" and ready.endpoint_status == "active" and not waits


def _shown(result: Reply | SendFailed, *, keep_body: bool) -> dict[str, Any]:
    """The recorded part of a reply."""
    found: dict[str, Any] = {"address": result.address, "ms": round(result.took * 1000)}
    if isinstance(result, Reply):
        found |= {"status": result.status, "response": request.response_head(result)}
        if keep_body:
            found["body"] = request.response_body(result)
    return found
