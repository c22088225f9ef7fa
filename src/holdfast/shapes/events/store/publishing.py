"""Publishing events."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from ....errors import ConcurrencyConflict
from ....store.arrays import int_array, text_array
from ....store.statement import Flow, Row, Statement, named


class NewEvent(NamedTuple):
    """One event to publish, checked and encoded."""

    type: str
    data: str
    key: str | None = None
    headers: str | None = None
    id: UUID | None = None
    version: int = 1


class Published(NamedTuple):
    """What `app.publish()` returns."""

    id: UUID
    seq: int  # with which `read_your_writes()` finds it
    created: bool = True  # False: an event of this id was there


def _published(rows: Sequence[Row]) -> list[Published]:
    return [Published(UUID(r[0]), int(r[1]), r[2] == "true") for (r,) in rows]


def _made(count: int, texts: Sequence[str]) -> list[Published]:
    """The ids, then the same number of seqs, then perhaps whether each is new."""
    pairs = zip(texts[:count], texts[count : 2 * count], strict=True)
    if len(texts) == 2 * count:
        return [Published(UUID(text), int(seq)) for text, seq in pairs]
    return [
        Published(UUID(text), int(seq), created == "true")
        for (text, seq), created in zip(pairs, texts[2 * count :], strict=True)
    ]


def publish(events: Sequence[NewEvent]) -> Statement[list[Published]]:
    return named("publish", tuple(events[0]), _published) if len(events) == 1 else publish_many(events)


def _columns(events: Sequence[NewEvent]) -> dict[str, str | None]:
    """Arrays go as text, which costs a tenth of handing the driver lists; a column without values is left out."""
    columns = zip(*events, strict=True) if events else [()] * len(NewEvent._fields)
    types, data, keys, headers, ids, versions = columns
    return {
        "types": text_array(types),
        "data": text_array(data),
        "keys": text_array(keys) if any(key is not None for key in keys) else None,
        "headers": text_array(headers) if any(headers) else None,
        "ids": text_array([None if i is None else str(i) for i in ids]) if any(ids) else None,
        "versions": int_array(versions) if versions.count(1) != len(versions) else None,
    }


def publish_many(events: Sequence[NewEvent]) -> Statement[list[Published]]:
    def decode(rows: Sequence[Row]) -> list[Published]:
        return _made(len(events), rows[0][0] or [])

    return named("publish_many", tuple(_columns(events).values()), decode)


def append(stream: str, events: Sequence[NewEvent], expected: int | None) -> Flow[int]:
    """The stream's version after these events, which are its next ones."""
    of = _columns(events)
    params = (stream, expected, of["types"], of["data"], of["headers"], of["versions"])

    def decode(rows: Sequence[Row]) -> tuple[int, bool]:
        version, first, *_ = rows[0][0]
        return int(version), first is not None

    version, written = yield from named("append_events", params, decode)
    if not written:
        raise ConcurrencyConflict(
            f"stream {stream!r} is at version {version}, not {expected}: somebody else wrote to it. "
            "Read it again and decide again",
            stream=stream,
            expected=expected or 0,
            actual=version,
        )
    return version


def stream_version(stream: str) -> Statement[int]:
    return named("stream_version", (stream,), lambda rows: int(rows[0][0][0]) if rows else 0)
