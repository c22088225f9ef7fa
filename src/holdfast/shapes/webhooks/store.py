"""The statements of webhooks; queries.sql has the text."""

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from ... import telemetry
from ...follow import LogRow
from ...model.outcome import Ended, Failed
from ...model.state import CANCELLED, DEAD
from ...store.holds import hold_keys, lift_keys, undecided_trials
from ...store.statement import Flow, Row, Statement, count, named

QUEUE = "webhooks"
ORDERED = "webhooks_ordered"
PING = "ping:"  # what the key of a ping begins with
ANOTHER = 0.2  # seconds until the next trial, after one that came to nothing
REPORTED = {
    "opened": logging.WARNING,
    "closed": logging.INFO,
    "failing": logging.WARNING,
    "disabled": logging.ERROR,
}


class Wanted(NamedTuple):
    """An endpoint, as far as the fan-out needs it."""

    id: UUID
    tenant: str
    events: tuple[str, ...]
    is_active: bool


def registry(since: str | None) -> Statement[tuple[str, list[Wanted]]]:
    """The snapshot that was read, and the changes since another one; None: every active endpoint."""

    def decode(rows: Sequence[Row]) -> tuple[str, list[Wanted]]:
        return rows[0][0], [Wanted(r[1], r[2], tuple(r[3]), r[4]) for r in rows if r[1] is not None]

    return named("webhook_registry", (since,), decode)


class Pair(NamedTuple):
    """An event that an endpoint gets."""

    endpoint: UUID
    row: LogRow
    metadata: str | None


def fan_out(pairs: Sequence[Pair], attempts: int, ordered_attempts: int) -> Statement[int]:
    rows = [pair.row for pair in pairs]
    params = (
        [pair.endpoint for pair in pairs],
        [row.id for row in rows],
        [row.seq for row in rows],
        [row.time for row in rows],
        [row.position for row in rows],
        [row.type for row in rows],
        [row.key for row in rows],
        [pair.metadata for pair in pairs],
        attempts,
        ordered_attempts,
    )
    return named("webhook_fan_out", params, count)


class Stored(NamedTuple):
    """An event as the log has it: a LogRow."""

    position: int
    seq: int
    id: UUID
    type: str
    version: int
    key: str | None
    time: datetime
    headers: str | None
    data: str | None


class Ready(NamedTuple):
    """A delivery and everything about its endpoint, as it is now."""

    id: UUID
    status: str
    cause: str
    event_id: UUID
    event_type: str
    endpoint_status: str | None  # None: it is gone
    url: str
    busy: bool  # an endpoint in order has as many requests as it may
    place: UUID | None  # of such an endpoint: the claim under which this one has its place
    headers: bytes | None
    headers_key_id: str | None
    secret_ids: list[UUID] | None
    secret_keys: list[str | None] | None
    secrets: list[bytes] | None
    refused: int  # how often in a row its address was refused
    open_for: float  # seconds until its breaker allows a request
    wait: float  # and until its rate does
    has_event: bool
    event: Stored | None  # None: the caller has it, or the log does not
    era: int


def begin(
    deliveries: Sequence[tuple[UUID, bool]], over: Sequence[tuple[UUID, UUID | None]] = ()
) -> Statement[dict[UUID, Ready]]:
    """`over`: deliveries of ordered endpoints whose request has ended, each with its place; without a place, those of
    these deliveries that were started before, and not sent."""

    def decode(rows: Sequence[Row]) -> dict[UUID, Ready]:
        found = {}
        for row in rows:
            head, (has, version, key, time, headers, data, position, seq, era) = row[:17], row[17:]
            event = None
            if time is not None:
                event = Stored(position, seq, row[3], row[4], version, key, time, headers, data)
            found[row[0]] = Ready(*[*head, bool(has), event, era])
        return found

    ids, knows = zip(*deliveries, strict=True)
    params = (list(ids), list(knows), [one for one, _ in over], [place for _, place in over])
    return named("webhook_begin", params, decode)


class Act(NamedTuple):
    """What remains to do after a settle (hold, lift), or to report (opened, closed, failing, disabled, ended)."""

    what: str
    endpoint: UUID
    queue: str
    key: str
    seconds: float | None
    reason: str | None
    trial: bool


def _ended(job: Ended, row: str) -> str:
    """A delivery is over when its job is: also one that its handler would have retried and that was older than its
    deadline, and one whose job was cancelled."""
    if job.state in DEAD and isinstance(job.outcome, Failed):
        return json.dumps({"reason": job.outcome.error.message, **json.loads(row), "outcome": "failed"})
    if job.state == CANCELLED:
        return json.dumps({"outcome": CANCELLED, "reason": "its job was cancelled", **json.loads(row)})
    return row


def settle(jobs: Sequence[Ended], rows: Sequence[str]) -> Flow[list[Act]]:
    """The recorder: write how attempts ended, and hold or lift the keys of their endpoints."""
    params = (f"[{','.join(map(_ended, jobs, rows))}]",)
    return _act(named("webhook_settle", params, _acts))


def settle_lost(most: int, every: float) -> Flow[list[Act]]:
    """End deliveries whose job ended without its handler, at most every `every` seconds; reads at most `most`."""
    return _act(named("webhook_lost", (most, every), _acts))


MOST_HOLDS = 1000


def mend_holds() -> Flow[int]:
    """Holds that would last for ever: nobody lifts them, or their trial ended without a row. Returns how many there were."""
    stale: list[tuple[str, str]] = yield from named("webhook_stale_holds", (MOST_HOLDS,), _pairs)
    for queue in (QUEUE, ORDERED):
        if keys := [key for of, key in stale if of == queue]:
            yield from lift_keys(queue, keys)
    undecided = [one for one in (yield from undecided_trials(MOST_HOLDS)) if one.queue == QUEUE]
    ours = [one.key for one in undecided if (one.reason or "").startswith("webhook ")]
    if ours:
        yield from hold_keys(QUEUE, ours, ANOTHER, reason="webhook breaker: another trial", trial=True)
    return len(stale) + len(ours)


def _pairs(rows: Sequence[Row]) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in rows]


def reopen(delivery: UUID) -> Statement[bool]:
    """A delivery that ended, and whose job was put back, waits again; whether it does."""
    return named("webhook_reopen", (delivery,), lambda rows: bool(rows[0][0]))


def _acts(rows: Sequence[Row]) -> list[Act]:
    return [Act(*row) for row in rows]


def _act(found: Statement[list[Act]]) -> Flow[list[Act]]:
    acts: list[Act] = yield from found
    disabled = {act.endpoint for act in acts if act.what == "disabled"}
    for act in acts:
        if act.what == "hold" and act.key.startswith(PING):
            continue  # nothing else has its key
        if act.what == "hold" and act.endpoint not in disabled:
            yield from hold_keys(
                act.queue, [act.key], act.seconds, reason=act.reason, trial=act.trial, at_least=True
            )
        elif act.what == "lift":
            yield from lift_keys(act.queue, [act.key])
        elif act.what == "ended":
            telemetry.emit(
                "webhook.ended_without_handler", level=logging.WARNING, deliveries=int(act.seconds or 0)
            )
        elif act.what in REPORTED:
            telemetry.emit(
                f"webhook.{act.what}",
                level=REPORTED[act.what],
                endpoint=str(act.endpoint),
                reason=act.reason,
                seconds=act.seconds,
            )
    return acts


# Endpoints -----------------------------------------------------------------------------------------------------------


def _json(rows: Sequence[Row]) -> Any:
    text = rows[0][0][0]
    return None if text is None else json.loads(text)


def create(spec: Mapping[str, Any], secret: Mapping[str, Any]) -> Statement[dict[str, Any]]:
    return named("webhook_create", (json.dumps(spec), json.dumps(secret)), _json)


def get(tenant: str, endpoint: UUID) -> Statement[dict[str, Any] | None]:
    return named("webhook_get", (tenant, str(endpoint)), _json)


def list_endpoints(tenant: str, after: UUID | None, limit: int) -> Statement[list[dict[str, Any]]]:
    params = (tenant, None if after is None else str(after), limit)
    return named("webhook_list", params, lambda rows: [json.loads(text) for text in rows[0][0] or ()])


def update(tenant: str, endpoint: UUID, changes: Mapping[str, Any]) -> Statement[Any]:
    return named("webhook_update", (tenant, str(endpoint), json.dumps(changes)), _json)


def delete(tenant: str, endpoint: UUID) -> Statement[bool]:
    return named("webhook_delete", (tenant, str(endpoint)), lambda rows: rows[0][0][0] == "true")


def rotate(tenant: str, endpoint: UUID, secret: Mapping[str, Any], overlap: float) -> Statement[str]:
    params = (tenant, str(endpoint), json.dumps(secret), overlap)
    return named("webhook_rotate", params, lambda rows: str(rows[0][0][0]))


# Keeping -------------------------------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """The state of webhooks, for metrics."""

    pending: int
    oldest_seconds: float
    statuses: dict[str, int]
    failing: int


def health() -> Statement[Seen]:
    return named(
        "webhook_health", (), lambda rows: Seen(rows[0][0], rows[0][1], rows[0][2] or {}, rows[0][3])
    )


MOST_TROUBLED = 1000


class FailingEndpoint(NamedTuple):
    """An endpoint that fails, or gets nothing."""

    id: UUID
    tenant: str
    status: str
    why: str | None  # it was disabled, or its last error
    seconds: float  # since when


def troubled_endpoints(failing_for: float) -> Statement[list[FailingEndpoint]]:
    """Those that have failed for this long, and all that are paused or disabled; the longest first."""
    params = (failing_for, MOST_TROUBLED)
    return named("webhook_troubled", params, lambda rows: [FailingEndpoint(*row) for row in rows])


def sealing_keys() -> Statement[dict[str | None, int]]:
    """How many secrets in use each key has sealed; None: they are bare."""
    return named("webhook_sealing_keys", (), lambda rows: {row[0]: row[1] for row in rows})


def set_webhooks(retention: int, disable_after: float, tenant_header: str) -> Statement[int]:
    return named("set_webhooks", (retention, disable_after, tenant_header), count)


def prune(days: int, most: int) -> Statement[int]:
    return named("empty_webhook_slots", (most,), count)
