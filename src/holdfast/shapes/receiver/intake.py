"""One message from its headers and bytes: verified, parsed, checked against its type, ready to be written; or refused."""

import base64
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from ... import telemetry
from ...errors import InvalidMessage, InvalidPayload, VerificationFailed
from ...model.strict_json import is_json, media_type, parse_json
from ...model.text import describe, storable
from ...tasks import tracing
from ...tasks.convert import Misfit
from ...tasks.payload import PAYLOAD_BYTES, dump
from .message import MessageConverter, envelope, kept_headers
from .parse import CLOUDEVENTS, KeyTemplate, opened, parse_form
from .store import NewMessage, Target
from .verify import FORM, Headers, Verifier, checked_id

RAW_BYTES = 64 * 1024  # bytes of an unreadable message that are kept with its dead letter
_ANY = 1 << 40
Outcome = Literal["new", "repeat", "conflict", "parked", "challenge", "refused"]


@dataclass(frozen=True, slots=True)
class Receipt:
    """The result of a request: reply with `status` and `text` once your transaction has committed."""

    status: int  # 202 new, 200 repeat, 400, 401, 405, 408, 413, 415, 422, 503
    outcome: Outcome
    job_id: UUID | None = None
    text: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


class TooLarge(Exception):
    """The message does not fit into a job."""


def counted(source: str, outcome: str, messages: int = 1) -> None:
    """For metrics: every message, with its outcome."""
    if telemetry.audible(logging.DEBUG):
        telemetry.emit(
            "received.counted", level=logging.DEBUG, source=source, outcome=outcome, messages=messages
        )


def refused(status: int, text: str, **headers: str) -> Receipt:
    return Receipt(status, "refused", text=text, headers=headers)


@dataclass(frozen=True, slots=True)
class Intake:
    """How the messages of one source are checked."""

    target: Target
    parameter: str  # of the handler
    converter: MessageConverter
    key: KeyTemplate | None
    max_bytes: int
    misfit: Literal["park", "refuse"] = "park"

    def too_large(self) -> Receipt:
        return refused(413, f"the message is larger than {self.max_bytes:,} bytes")

    def wrong_type(self, headers: Headers, verifier: Verifier) -> Receipt | None:
        """415 for bodies that are neither JSON nor another type that the verifier's sender uses."""
        kind = media_type((headers.get("content-type") or [""])[0])
        allowed = getattr(verifier, "content_types", ("application/json",))
        if is_json(kind) or kind in allowed:
            return None
        return refused(415, f"send {' or '.join(allowed)}", accept=", ".join(allowed))

    def take(self, verifier: Verifier, headers: Headers, body: bytes, now: datetime) -> NewMessage | Receipt:
        """One request whose type is right. The body is neither decoded nor parsed before it is known to be genuine."""
        if len(body) > self.max_bytes:
            return self.too_large()
        try:
            verified = verifier.verify(headers, body, now)
            kind = media_type((headers.get("content-type") or [""])[0])
            data = parse_form(body) if kind == FORM else parse_json(body)
            if (reply := getattr(verifier, "reply_to", lambda _: None)(data)) is not None:
                return Receipt(200, "challenge", text=reply)
            message_id = verified.message_id or getattr(verifier, "id_of", lambda *_: "")(data, body)
            checked_id(message_id, "the message id")
            flat = {name: ", ".join(values) for name, values in headers.items()}
            if kind == CLOUDEVENTS:
                data, attributes = opened(data)
                flat |= attributes
            made = self.message(message_id, flat, body, data, now)
        except VerificationFailed:
            return refused(401, "the signature, its secret or its timestamp does not fit")
        except InvalidMessage as error:
            return refused(400, storable(str(error), 500))
        except InvalidPayload as error:
            return refused(400, storable(f"the message cannot be stored: {error}", 500))
        except TooLarge as error:
            return refused(413, str(error))
        if made.fault is not None and self.misfit == "refuse":
            return refused(422, storable(made.fault, 500))
        return made

    def message(
        self,
        message_id: str,
        headers: Mapping[str, str],
        body: bytes,
        data: Any,
        now: datetime,
        *,
        judged: bool = True,
    ) -> NewMessage:
        """A readable message. One that does not fit its type has a fault, and is kept anyway. `judged=False`: its
        type, which may be code of the user, is left to the job."""
        key, fault = self._judged(data) if judged else self._keyed(data)
        if key is not None:
            dump(key, "key")  # InvalidPayload: half a character, or NUL
        whole = {self.parameter: envelope(self.target.source, message_id, now, kept_headers(headers), data)}
        text = dump(whole, "message", _ANY, was_json=True)
        if len(text) > PAYLOAD_BYTES // 8:
            try:
                text = dump(whole, "message")
            except InvalidPayload:
                raise TooLarge(
                    f"the message is larger than a job can be, which is {PAYLOAD_BYTES:,} bytes with its headers"
                ) from None
        trace = tracing.received(headers)
        return NewMessage(message_id, hashlib.sha256(body).hexdigest(), text, key, fault, trace)

    def _judged(self, data: Any) -> tuple[str | None, str | None]:
        """The key, and why the message cannot become a job."""
        try:
            self.converter.load_data(data)
        except Misfit as error:
            return None, storable(f"InvalidMessage: the message does not fit its type: {error}", 2000)
        except Exception as error:  # noqa: BLE001 a validator is the user's code
            return None, storable(f"InvalidMessage: its type failed: {describe(error).summary}", 2000)
        return self._keyed(data)

    def _keyed(self, data: Any) -> tuple[str | None, str | None]:
        try:
            return None if self.key is None else self.key.key_of(data), None
        except InvalidMessage as error:
            return None, f"InvalidMessage: {error}"

    def unreadable(
        self, message_id: str, headers: Mapping[str, str], body: bytes, why: str, now: datetime
    ) -> NewMessage:
        """A message of a broker with unreadable bytes: kept as they are, as far as they fit."""
        shown = envelope(self.target.source, message_id, now, kept_headers(headers), None)
        shown["raw"] = base64.b64encode(body[:RAW_BYTES]).decode()
        shown["bytes"] = len(body)
        fault = storable(f"InvalidMessage: {why}", 2000)
        payload = dump({self.parameter: shown}, "message")
        return NewMessage(message_id, hashlib.sha256(body).hexdigest(), payload, None, fault)
