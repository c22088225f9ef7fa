"""Values arrive as they were sent, or are refused: each goes through a jsonb of a real server."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Optional

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Holdfast, InvalidArguments, InvalidOption, InvalidPayload
from holdfast.tasks.codec import Codec
from holdfast.tasks.signature import analyse
from holdfast.testing import Kit

LARGE = 2**53 + 1


@dataclass
class Size:
    width: float
    serial: int = 0


class Weight(msgspec.Struct):
    kilos: float


def codec_for(annotation: Any) -> Codec:
    def f(x: Any) -> Any: ...

    f.__annotations__ = {"x": annotation, "return": annotation}
    return Codec("shop.f", analyse(f))


@pytest.fixture(scope="module")
def through(holdfast_server: Any) -> Iterator[Callable[[str], str]]:
    """JSON text as a server gives it back."""
    with psycopg.connect(holdfast_server.url("postgres"), autocommit=True) as conn:

        def store(text: str) -> str:
            row = conn.execute("SELECT %s::jsonb::text", [text]).fetchone()
            assert row is not None
            return str(row[0])

        yield store


def same(a: Any, b: Any) -> bool:
    """Equal, of the same type, and of the same sign."""
    if isinstance(a, dict):
        return type(b) is dict and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return type(b) is list and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b) and (a != 0 or math.copysign(1, a) == math.copysign(1, b))


numbers = (
    st.integers()
    | st.integers(-(10**999), 10**999)
    | st.floats()
    | st.sampled_from([-0.0, 1e16, 1e23, 2.0**53])
)
texts = st.text(st.characters(exclude_characters="\x00", codec="utf-8")) | st.sampled_from(
    ["1e+16", '"-0.0"', "\\"]
)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=10,
)
ANNOTATIONS: list[Any] = [
    Any,
    float,
    int,
    int | float,
    float | None,
    list[float],
    dict[str, float],
    list[Any],
]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values, st.sampled_from(ANNOTATIONS))
def test_what_is_taken_arrives_as_it_was_sent(
    through: Callable[[str], str], value: Any, annotation: Any
) -> None:
    codec = codec_for(annotation)
    try:
        payload = codec.encode((value,), {})
    except (InvalidArguments, InvalidPayload):
        return
    back = codec.decode(1, through(payload))["x"]
    assert back == value  # exactly: Python compares an int and a float by their value
    assert same(value, back) or annotation is not Any
    assert codec.decode_result(through(codec.encode_result(value))) == value


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(allow_nan=False, allow_infinity=False).map(lambda number: number + 0.0))
def test_every_float_but_the_negative_zero_arrives(through: Callable[[str], str], number: float) -> None:
    for annotation, value in (
        (float, number),
        (Any, number),
        (int | float, number),
        (list[float], [number]),
        (Size, Size(number)),
        (Weight, Weight(number)),
    ):
        codec = codec_for(annotation)
        back = codec.decode(1, through(codec.encode((value,), {})))["x"]
        assert back == value
        assert same(number, back) or annotation in (list[float], Size, Weight)


REFUSED: list[tuple[Any, Any, str]] = [
    (float, LARGE, "argument 'x' of shop.f must be float: 9007199254740993 would become 9007199254740992.0"),
    (float, 10**23, "argument 'x' of shop.f must be float: 100000000000000000000000 would become 1e+23"),
    (float, 10**400, "argument 'x' of shop.f must be float: the integer is too large for a float"),
    (list[float], [1, LARGE], "9007199254740993 would become 9007199254740992.0"),
    (dict[str, float], {"a": LARGE}, "9007199254740993 would become 9007199254740992.0"),
    (Optional[float], LARGE, "9007199254740993 would become 9007199254740992.0"),  # noqa: UP045 its own converter
    (set[float], {LARGE}, "9007199254740993 would become 9007199254740992.0"),
    (Size, Size(LARGE), "9007199254740993 would become 9007199254740992.0"),
    (Weight, Weight(LARGE), "9007199254740993 would become 9007199254740992.0"),
    (
        Any,
        -0.0,
        "payload value x is -0.0, whose sign PostgreSQL does not keep. Pass 0.0 (x + 0.0), or a string",
    ),
    (float, -0.0, "payload value x is -0.0"),
    (list[float], [0.5, -0.0], "payload value x[1] is -0.0"),
    (Size, Size(-0.0), "payload value x.width is -0.0"),
]


@pytest.mark.parametrize(("annotation", "value", "refusal"), REFUSED, ids=lambda v: str(v)[:30])
def test_what_would_change_is_refused(annotation: Any, value: Any, refusal: str) -> None:
    codec = codec_for(annotation)
    with pytest.raises((InvalidArguments, InvalidPayload)) as caught:
        codec.encode((value,), {})
    assert refusal in str(caught.value)
    with pytest.raises(InvalidPayload):
        codec.encode_result(value)


KEPT: list[tuple[Any, Any]] = [
    (Any, LARGE),
    (int, LARGE),
    (int | float, LARGE),
    (list[Any], [LARGE, 1e16, "1e+16", '"', "-0.0"]),
    (Size, Size(float(LARGE), LARGE)),
    (float, 2**60),
    (float, 1e23),
    (list[float], [2**60, 1e23]),
    (Decimal, Decimal("9007199254740993.10")),
]


@pytest.mark.parametrize(("annotation", "value"), KEPT, ids=lambda v: str(v)[:30])
def test_what_does_not_change_is_taken(through: Callable[[str], str], annotation: Any, value: Any) -> None:
    codec = codec_for(annotation)
    assert codec.decode(1, through(codec.encode((value,), {})))["x"] == value


def test_a_large_float_that_another_producer_wrote_is_read(through: Callable[[str], str]) -> None:
    """SQL and releases before write 1e23 with an exponent, which jsonb prints as an integer that is not quite the float."""
    for annotation, text in (
        (float, '{"x": 1e23}'),
        (list[float], '{"x": [1e23]}'),
        (Weight, '{"x": {"kilos": 1e23}}'),
    ):
        back = codec_for(annotation).decode(1, through(text))["x"]
        assert back in (1e23, [1e23], Weight(1e23))


def test_they_arrive_in_a_handler_and_come_back(app: Holdfast, kit: Kit) -> None:
    sent = [1e16, 1e22, 1.7976931348623157e308, 5e-324, 0.1, 2**63, LARGE, -(10**40), 3.0, 3, "1e+16"]
    seen: list[Any] = []

    @app.task
    def take(values: Any, one: float, *, other: Any) -> Any:
        seen.extend([*values, one, other])
        return values

    handle = take.enqueue(sent, 1e16, other=-1e300)
    kit.run_worker()
    assert all(map(same, [*sent, 1e16, -1e300], seen))
    assert all(map(same, sent, handle.result(timeout=5)))


def test_metadata_follows_the_same_rule(app: Holdfast, kit: Kit) -> None:
    @app.task
    def take() -> None: ...

    with pytest.raises(InvalidOption, match=r"metadata value a is -0\.0"):
        take.using(metadata={"a": -0.0}).enqueue()
    job = take.using(metadata={"a": 1e16}).enqueue().id
    assert same(kit.job(job)["metadata"], {"a": 1e16})
