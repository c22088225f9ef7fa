"""Reads a broker in every worker: one transaction per batch, and the acknowledgement after its commit.

A message that comes again, because the acknowledgement was lost or the process died before it, is dropped by its id. What
cannot be read becomes a dead letter in the same transaction, so that a bad message never stops the ones behind it.
"""

import asyncio
import hashlib
import logging
import re
from collections.abc import Sequence

from ... import failpoints, telemetry
from ...db.database import Database
from ...db.faults import BadRow
from ...errors import InvalidMessage, InvalidPayload
from ...model.strict_json import media_type, parse_json
from ...model.text import storable
from ...runtime.service import Service
from ...tasks.taskset import TaskSet
from ...tasks.writer import unknown_queue
from ...transport import InMessage, Source
from . import store
from .declare import Declared, declared
from .intake import TooLarge
from .parse import CLOUDEVENTS, opened
from .store import NewMessage, Written

BATCH = 500
WAIT = 1.0  # seconds that one look at an empty broker takes
_BRIEF = 0.25
_KEY_BYTES = 512
_ID = re.compile("[!-~]{1,256}")


class Reader(Service):
    """One source. Stops reading at a poison message where it was declared so, and says so once."""

    def __init__(self, database: Database, what: Declared, broker: Source) -> None:
        super().__init__()
        self.name = f"consume {what.source}"
        self._database = database
        self._what = what
        self._intake = what.intake
        self._broker = broker
        self._is_open = False
        self._stopped = False
        self._turn = asyncio.Lock()

    async def tick(self) -> float:
        await self._read(WAIT)
        return 3600.0 if self._stopped else 0.0

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
                if not self._is_open:
                    self._is_open = True
                    await self._broker.open()
                messages = await self._broker.receive(BATCH, wait=wait)
                if messages:
                    await self._take(messages)
            except BaseException:
                await self._close()
                raise
            return len(messages)

    async def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            try:
                await self._broker.close()
            except Exception as error:  # noqa: BLE001 it is to be opened anew in any case
                telemetry.log.debug("%s: close failed: %s", self.name, error)

    async def _take(self, messages: Sequence[InMessage]) -> None:
        made = [self._made(message) for message in messages]
        good = len(made)
        if self._what.poison == "stop":
            good = next((n for n, one in enumerate(made) if one.fault is not None), good)
        if good:
            await self._write(messages[:good], made[:good])
        if good < len(made):
            self._stopped = True
            await self._broker.release([m.receipt for m in messages[good:]], delay=0.0)
            telemetry.emit(
                "consume.stopped",
                level=logging.ERROR,
                source=self._what.source,
                message=made[good].id,
                error=made[good].fault,
            )

    async def _write(self, messages: Sequence[InMessage], made: Sequence[NewMessage]) -> None:
        try:
            written = await self._database.arun(lambda: store.receive_many(self._intake.target, made))
        except BadRow as error:
            if len(made) > 1:  # which of them? Each by itself
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
        await self._broker.ack([message.receipt for message in messages])
        self._report(written)

    def _report(self, written: Sequence[Written]) -> None:
        for one in written:
            if one.outcome in ("parked", "differs"):
                telemetry.emit(
                    f"received.{one.outcome}",
                    level=logging.WARNING,
                    source=self._what.source,
                    job_id=str(one.job_id),
                )

    def _made(self, message: InMessage) -> NewMessage:
        """What is written for a message, whatever it is."""
        now = self._database.clock.now()
        headers = {name.lower(): value for name, value in message.headers.items()}
        found = message.id
        if not _ID.fullmatch(found):
            found = "sha256:" + hashlib.sha256(found.encode("utf-8", "surrogatepass")).hexdigest()
        try:
            if len(message.body) > self._intake.max_bytes:
                raise TooLarge(f"the message is larger than {self._intake.max_bytes:,} bytes")
            data = parse_json(message.body)
            if media_type(headers.get("content-type", "")) == CLOUDEVENTS:
                data, attributes = opened(data)
                headers |= attributes
            made = self._intake.message(found, headers, message.body, data, now)
        except (InvalidMessage, InvalidPayload, TooLarge) as error:
            return self._intake.unreadable(found, headers, message.body, str(error), now)
        key = message.key or headers.get("ce-subject")
        if made.key is not None or not key:
            return made
        if storable(key, _KEY_BYTES) != key:
            why = f"its key is longer than {_KEY_BYTES} bytes, or no text that can be stored"
            return self._intake.unreadable(found, headers, message.body, why, now)
        return made._replace(key=key)


def services(database: Database, tasks: TaskSet) -> list[Service]:
    """One for each source of a broker."""
    return [Reader(database, what, what.broker) for what in declared(tasks) if what.broker is not None]
