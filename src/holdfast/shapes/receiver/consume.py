"""Reads a broker in every worker: one transaction per batch, and the acknowledgement after its commit.

A message that comes again, because the acknowledgement was lost or the process died before it, is dropped by its id. An
unreadable message becomes a dead letter in the same transaction, so that it does not stop the ones behind it. A message
that was delivered again and again, because the reading process ended, becomes a job as it is: a job that ends processes
runs in a separate one, and is a dead letter after a few.
"""

import asyncio
import hashlib
import logging
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from ... import failpoints, telemetry
from ...db.database import Database
from ...db.faults import BadRow
from ...errors import DatabaseError, InvalidMessage, InvalidPayload
from ...model.strict_json import media_type, parse_json
from ...model.text import storable
from ...runtime.bounded import bounded
from ...runtime.service import Service
from ...tasks.taskset import TaskSet
from ...tasks.writer import unknown_queue
from ...transport import InMessage, Source
from . import store
from .declare import Declared, declared
from .gather import BATCH_BYTES
from .intake import TooLarge, counted
from .parse import CLOUDEVENTS, opened
from .store import NewMessage, Noted, Written

BATCH = 500
NOTED_EACH = 10.0  # seconds
WAIT = 1.0  # seconds that one read of an empty broker takes
_REPLIES = 30.0  # seconds that a call to a broker may take, beyond its wait for messages
_CLOSES = 2.0
_BRIEF = 0.25
_FULL = 1.0  # seconds between two checks of a queue that is full
_ASKED_EACH = 10.0  # seconds between two counts of waiting messages
_KEY_BYTES = 512
_ID = re.compile("[!-~]{1,256}")
DELIVERIES = (
    5  # deliveries of a message after which its type is not checked here: perhaps that ends the process
)


class Reader(Service):
    """One source. Stops reading at a poison message if declared so, and reports it once."""

    def __init__(self, database: Database, what: Declared, broker: Source) -> None:
        super().__init__()
        self.name = f"consume {what.source}"
        self.source = what.source
        self._database = database
        self._what = what
        self._intake = what.intake
        self._broker = broker
        self._is_open = False
        self._open: list[InMessage] = []  # neither acknowledged nor given back
        self._unwritten = False  # the last batch could not be written
        self._unheard: Exception | None = None  # why the broker did not hear that messages are done
        self._stopped = False
        self._turn = asyncio.Lock()
        self._room = 0  # messages that the queue may still take
        self._counted_at = self._asked_at = float("-inf")
        self.has_read = False  # the broker has replied; the reader of the flag resets it
        self.waiting: int | None = None
        self.problem: str | None = None

    async def tick(self) -> float:
        await self._read(WAIT)
        if self._stopped:
            return 3600.0
        return _FULL if self._is_full else 0.0

    async def catch_up(self) -> bool:
        return await self._read(_BRIEF) > 0

    async def finish(self) -> None:
        async with self._turn:
            await self._close()

    async def _read(self, wait: float) -> int:
        """One batch; returns how many messages there were."""
        async with self._turn:
            if self._stopped:
                return 0
            try:
                most = await self._most()
                if most == 0:
                    return 0
                if self._unwritten:  # during an outage messages are better off in the broker
                    await self._database.arun(lambda: store.queue_depth(self._intake.target.queue, 1))
                    self._unwritten = False
                if not self._is_open:
                    self._is_open = True
                    await bounded(self._broker.open(), _REPLIES, "open()")
                messages = await bounded(self._broker.receive(most, wait=wait), wait + _REPLIES, "receive()")
                self.has_read, self.problem = True, None
                if messages:
                    self._room -= len(messages)
                    self._open = list(messages)
                    await self._take(messages)
                await self._ask_how_many()
            except BaseException as error:
                self.problem = storable(f"{type(error).__name__}: {error}", 2000)
                if self._open and isinstance(error, DatabaseError):  # a missing queue is waited for
                    await self._give_back()
                await self._close()
                raise
            return len(messages)

    @property
    def _is_full(self) -> bool:
        return self._what.max_depth is not None and self._room <= 0

    async def _most(self) -> int:
        """How many messages may be taken now; 0: the queue is full, and they are better off in the broker."""
        limit = self._what.max_depth
        if limit is None:
            return BATCH
        if self._room <= 0 or time.monotonic() - self._counted_at > _FULL:
            depth = await self._database.arun(lambda: store.queue_depth(self._intake.target.queue, limit))
            self._room, self._counted_at = limit - depth, time.monotonic()
        if self._is_full:
            self.has_read, self.problem = True, f"it waits: its queue has {limit} jobs or more"
        return min(BATCH, max(self._room, 0))

    async def _ask_how_many(self) -> None:
        """A source may report how many messages wait in the broker."""
        ask = getattr(self._broker, "waiting", None)
        if ask is not None and time.monotonic() - self._asked_at > _ASKED_EACH:
            self.waiting, self._asked_at = await bounded(ask(), _REPLIES, "waiting()"), time.monotonic()

    async def _give_back(self) -> None:
        """Messages that were not written come again at once, before later ones: else some brokers wait for their reader."""
        left, self._open, self._unwritten = self._open, [], True
        try:
            await bounded(self._broker.release([m.receipt for m in left], delay=0.0), _CLOSES, "release()")
        except Exception as error:  # noqa: BLE001 it comes again in any case
            telemetry.log.debug("%s: release failed: %s", self.name, error)

    async def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            try:
                await bounded(self._broker.close(), _CLOSES, "close()")
            except Exception as error:  # noqa: BLE001 it is opened again in any case
                telemetry.log.debug("%s: close failed: %s", self.name, error)

    async def _take(self, messages: Sequence[InMessage]) -> None:
        made = [self._made(message) for message in messages]
        good = len(made)
        if self._what.poison == "stop":
            good = next((n for n, one in enumerate(made) if one.fault is not None), good)
        self._unheard = None
        for begin, end in _parts(made[:good]):
            await self._write(messages[begin:end], made[begin:end])
        if self._unheard is not None:
            raise self._unheard
        if good < len(made):
            self._stopped = True
            self.has_read, self.problem = False, f"it stopped before {made[good].id}: {made[good].fault}"
            telemetry.emit(
                "consume.stopped",
                level=logging.ERROR,
                source=self._what.source,
                message=made[good].id,
                error=made[good].fault,
            )
            receipts, self._open = [m.receipt for m in messages[good:]], []
            await bounded(self._broker.release(receipts, delay=0.0), _REPLIES, "release()")

    async def _write(self, messages: Sequence[InMessage], made: Sequence[NewMessage]) -> None:
        try:
            written = await self._database.arun(lambda: store.receive_many(self._intake.target, made))
        except BadRow as error:
            if len(made) > 1:  # each is tried alone
                for message, one in zip(messages, made, strict=True):
                    await self._write([message], [one])
                return
            if made[0].fault is not None:
                raise
            why = f"it cannot become a job: {error}"
            now = self._database.clock.now()
            parked = self._intake.unreadable(made[0].id, messages[0].headers, messages[0].body, why, now)
            written = await self._database.arun(lambda: store.receive_many(self._intake.target, [parked]))
        if written[0].outcome == "queue":
            raise unknown_queue(self._intake.target.queue, [])
        failpoints.point("consume.committed")
        done = {id(message) for message in messages}
        self._open = [message for message in self._open if id(message) not in done]
        self._report(written)
        if self._unheard is None:
            try:
                await bounded(self._broker.ack([m.receipt for m in messages]), _REPLIES, "ack()")
            except Exception as error:  # noqa: BLE001 the rest is written first: it would come after later messages
                self._unheard = error

    def _report(self, written: Sequence[Written]) -> None:
        for outcome, messages in Counter(one.outcome for one in written).items():
            counted(self._what.source, outcome, messages)
        for one in written:
            if one.outcome in ("parked", "differs"):
                telemetry.emit(
                    f"received.{one.outcome}",
                    level=logging.WARNING,
                    source=self._what.source,
                    job_id=one.job_id,
                )

    def _made(self, message: InMessage) -> NewMessage:
        """The row for a message, whatever it contains."""
        now = self._database.clock.now()
        headers = {name.lower(): value for name, value in message.headers.items()}
        found, key = _fit(message.id), message.key
        judged = self._what.poison == "stop" or message.deliveries <= DELIVERIES
        try:
            if len(message.body) > self._intake.max_bytes:
                raise TooLarge(f"the message is larger than {self._intake.max_bytes:,} bytes")
            data = parse_json(message.body)
            if media_type(headers.get("content-type", "")) == CLOUDEVENTS:
                data, attributes = opened(data)
                headers |= attributes
                key = attributes.get("ce-subject") or key
                found = _fit(attributes.get("ce-id") or message.id)  # a place is one only where it has no id
            made = self._intake.message(found, headers, message.body, data, now, judged=judged)
        except (InvalidMessage, InvalidPayload, TooLarge) as error:
            return self._intake.unreadable(found, headers, message.body, str(error), now)
        key = key or headers.get("ce-subject")
        if made.key is not None or not key:
            return made
        if storable(key, _KEY_BYTES) != key:
            why = f"its key is longer than {_KEY_BYTES} bytes, or no text that can be stored"
            return self._intake.unreadable(found, headers, message.body, why, now)
        return made._replace(key=key)


def _fit(message_id: str) -> str:
    """The id, or its digest if it cannot be stored as it is."""
    if _ID.fullmatch(message_id):
        return message_id
    return "sha256:" + hashlib.sha256(message_id.encode("utf-8", "surrogatepass")).hexdigest()


def _parts(made: Sequence[NewMessage]) -> Iterator[tuple[int, int]]:
    """Where one transaction begins and ends: many large messages are several."""
    begin = size = 0
    for n, one in enumerate(made):
        if size and size + len(one.payload) > BATCH_BYTES:
            yield begin, n
            begin, size = n, 0
        size += len(one.payload)
    if begin < len(made):
        yield begin, len(made)


class Watch(Service):
    """Records regularly which sources the code has, and the state of brokers, for the doctor and the metrics."""

    name = "sources"

    def __init__(self, database: Database, sources: Sequence[Declared], readers: Sequence[Reader]) -> None:
        super().__init__()
        self._database = database
        self._sources = sources
        self._readers = {reader.source: reader for reader in readers}

    async def tick(self) -> float:
        noted = [self._noted(what) for what in self._sources]
        await self._database.arun(lambda: store.note_sources(noted))
        return NOTED_EACH

    def _noted(self, what: Declared) -> Noted:
        target, reader = what.intake.target, self._readers.get(what.source)
        if reader is None:
            return Noted(what.source, False, target.task, target.keep)
        has_read, reader.has_read = reader.has_read, False
        return Noted(what.source, True, target.task, target.keep, has_read, reader.waiting, reader.problem)


def services(database: Database, tasks: TaskSet) -> list[Service]:
    """One for each source of a broker, and one that records their state."""
    sources = declared(tasks)
    readers = [Reader(database, what, what.broker) for what in sources if what.broker is not None]
    return [*readers, Watch(database, sources, readers)] if sources else []
