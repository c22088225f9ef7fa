"""Records as JSON, for statements that take the rows of one run, and as columns, for those of many."""

import json
from collections.abc import Iterable, Sequence

from ...store.arrays import int_array, plain_array, text_array
from ...tasks.payload import quoted
from .journal import Record


def plain_row(row: Record) -> dict[str, object]:
    """Results and errors, which are JSON text, stay text."""
    return {**_plain(row), "result": row.result, "error": row.error}


def last_text(rows: Sequence[Record]) -> str | None:
    """The same of several, `{"rows": [...]}`, put together at once; None: it has what must be looked at."""
    text = '{"rows":[' + ",".join(map(_text, rows)) + "]}"
    return text if text.isascii() and "\\u0000" not in text else None


def _text(row: Record) -> str:
    key, kind, outcome, ordinal, result, error, attempts, began, input_hash, linked, ended = row
    return (
        f'{{"key":{quoted(key)},"kind":"{kind}","outcome":"{outcome}","attempts":{attempts}'
        f',"ordinal":{"null" if ordinal is None else ordinal},"began":{"null" if began is None else began}'
        f',"ended":{_or_null(None if ended is None else ended.isoformat())}'
        f',"input_hash":{_or_null(None if input_hash is None else input_hash.hex())}'
        f',"linked":{_or_null(None if linked is None else str(linked))}'
        f',"result":{_or_null(result)},"error":{_or_null(error)}}}'
    )


def _or_null(value: str | None) -> str:
    return "null" if value is None else quoted(value)


def row_json(row: Record) -> str:
    """Results and errors are embedded as JSON."""
    tail = f', "result": {row.result}' if row.result is not None else ""
    tail += f', "error": {row.error}' if row.error is not None else ""
    return json.dumps(_plain(row))[:-1] + tail + "}"


def rows_json(rows: Iterable[Record]) -> str:
    return "[" + ",".join(map(row_json, rows)) + "]"


def _plain(row: Record) -> dict[str, object]:
    return {
        "key": row.key,
        "kind": row.kind,
        "outcome": row.outcome,
        "ordinal": row.ordinal,
        "attempts": row.attempts,
        "began": row.began,
        "ended": None if row.ended is None else row.ended.isoformat(),
        "input_hash": None if row.input_hash is None else row.input_hash.hex(),
        "linked": None if row.linked is None else str(row.linked),
    }


def values(given: Iterable[object]) -> str:
    """An array of numbers, uuids and fixed words, as text."""
    return plain_array(["NULL" if value is None else str(value) for value in given])


def texts(given: Sequence[str | None]) -> str:
    """An array of texts that often are NULL, all of them."""
    return text_array(given) if given.count(None) < len(given) else _nulls(len(given))


def columns(rows: Sequence[Record]) -> tuple[str, ...]:
    """What they hold, in the order in which `workflow_record` takes it."""
    if not rows:
        return ("{}",) * len(Record._fields)
    keys, kinds, outcomes, ordinals, results, errors, attempts, began, hashes, linked, ended = zip(
        *rows, strict=True
    )
    count = len(rows)
    return (
        text_array(keys),
        plain_array(kinds),
        plain_array(outcomes),
        values(ordinals),
        texts(results),
        texts(errors),
        int_array(attempts),
        values(began),
        plain_array(["NULL" if value is None else value.hex() for value in hashes]),
        _nulls(count) if linked.count(None) == count else values(linked),
        _nulls(count)
        if ended.count(None) == count
        else texts([None if at is None else at.isoformat() for at in ended]),
    )


def _nulls(count: int) -> str:
    return "{" + ",".join(["NULL"] * count) + "}"
