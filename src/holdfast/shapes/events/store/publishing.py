"""Events that are published."""

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


def _all_published(rows: Sequence[Row]) -> list[Published]:
    texts = rows[0][0] or []
    n = len(texts) // 3
    columns = zip(texts[:n], texts[n : 2 * n], texts[2 * n :], strict=True)
    return [Published(UUID(text), int(seq), created == "true") for text, seq, created in columns]


def publish(events: Sequence[NewEvent]) -> Statement[list[Published]]:
    return named("publish", tuple(events[0]), _published) if len(events) == 1 else publish_many(events)


def publish_many(events: Sequence[NewEvent]) -> Statement[list[Published]]:
    """Arrays go as text, which costs a tenth of handing the driver lists; a column without values is left out."""
    columns = list(zip(*events, strict=True))
    types, data, keys, headers, ids, versions = columns or [()] * len(NewEvent._fields)
    params = (
        text_array(types),
        text_array(data),
        text_array(keys) if any(key is not None for key in keys) else None,
        text_array(headers) if any(headers) else None,
        text_array([None if i is None else str(i) for i in ids]) if any(ids) else None,
        int_array(versions) if versions.count(1) != len(versions) else None,
    )
    return named("publish_many", params, _all_published)


def append(
    stream: str, events: Sequence[NewEvent], expected: int | None
) -> Flow[tuple[int, list[Published]]]:
    """The stream's version after these events, which are its next ones."""

    def decode(rows: Sequence[Row]) -> int:
        return int(rows[0][0][0])

    version: int = yield from named("append_events", (stream, expected, len(events)), decode)
    if version < 0:
        actual = -version - 1
        raise ConcurrencyConflict(
            f"stream {stream!r} is at version {actual}, not {expected}: somebody else wrote to it. "
            "Read it again and decide again",
            stream=stream,
            expected=expected or 0,
            actual=actual,
        )
    published = yield from publish_many(events)
    return version, published
