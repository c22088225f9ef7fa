"""JSON from outside: what it costs to refuse it does not grow faster than it does."""

from typing import Any

import pytest

from holdfast import InvalidMessage
from holdfast.model.strict_json import _object, parse_json


class Counted(str):
    """A key that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_key_that_is_there_twice_is_named() -> None:
    with pytest.raises(InvalidMessage, match="the key str 'b' is there twice"):
        parse_json(b'{"a": 1, "b": {}, "c": {"a": 1}, "b": 2, "a": 3}')
    with pytest.raises(InvalidMessage, match="the key str 'x' is there twice"):
        parse_json(b'[{"a": {"x": 1, "x": 1}}]')


def test_a_key_that_is_there_twice_behind_many_is_found_by_one_look_at_each() -> None:
    """Compared with each other, the keys of one megabyte would take minutes, in which nothing else runs."""
    pairs: list[tuple[str, Any]] = [(Counted(n), n) for n in [*range(2000), 1999]]
    Counted.compared = 0
    with pytest.raises(InvalidMessage, match="'1999' is there twice"):
        _object(pairs)
    assert Counted.compared < 2 * len(pairs)
