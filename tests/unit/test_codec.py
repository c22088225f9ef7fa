"""Arguments and results as JSON: round trips, strictness at enqueue, versions, and every refusal."""

import enum
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, computed_field
from typing_extensions import TypedDict

from holdfast.errors import InvalidArguments, InvalidPayload, TaskDefinitionError
from holdfast.runtime.handler import PayloadError
from holdfast.runtime.job import Job
from holdfast.tasks.codec import Codec
from holdfast.tasks.signature import analyse


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclass
class Line:
    sku: str
    price: Decimal
    when: datetime


class Address(TypedDict):
    street: str
    number: int


class Person(BaseModel):
    name: str = Field(alias="fullName")
    born: date

    @computed_field  # type: ignore[prop-decorator]
    @property
    def label(self) -> str:
        return self.name.upper()


class Point(msgspec.Struct):
    x: int
    at: datetime
    raw: bytes = b"\xff"
    names: dict[int, str] = msgspec.field(default_factory=dict)


class Plain:
    pass


NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def codec_for(annotation: Any) -> Codec:
    def f(x: Any) -> Any: ...

    f.__annotations__ = {"x": annotation, "return": annotation}
    return Codec("shop.f", analyse(f))


def codec_of(func: Callable[..., Any], **options: Any) -> Codec:
    return Codec(f"shop.{func.__name__}", analyse(func), **options)


def send_receipt(order_id: int, note: str = "") -> str: ...  # type: ignore[empty-body]
def injected(job: Job, order_id: int) -> None: ...


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


ROUND_TRIPS: list[tuple[Any, Any]] = [
    (int, 10**500 + 1),
    (str, "é😀"),
    (bool, True),
    (float, 1.5),
    (type(None), None),
    (Any, {"a": [1, None, "x"]}),
    (object, [1]),
    (dict[str, Any], {"a": 1}),
    (list, [1, "a"]),
    (int | None, None),
    (datetime, NOW),
    (date, date(2026, 1, 2)),
    (timedelta, timedelta(seconds=1.5)),
    (UUID, UUID(int=7)),
    (Decimal, Decimal("1.10")),
    (bytes, b"\xff\x00"),
    (Colour, Colour.RED),
    (Level, Level.HIGH),
    (Literal["a", "b"], "b"),
    (set[int], {1, 2}),
    (tuple[int, str], (1, "a")),
    (dict[int, str], {1: "a"}),
    (dict[UUID, list[date]], {UUID(int=1): [date(2026, 1, 2)]}),
    (list[int], [1, 2]),
    (list[float], [1, 2.5]),
    (Line, Line("a", Decimal("1.1"), NOW)),
    (list[Line], [Line("a", Decimal("1.1"), NOW)]),
    (Address, {"street": "s", "number": 1}),
    (Person, Person(fullName="n", born=date(2000, 1, 1))),
    (Point, Point(1, NOW, b"\x00\xff", {1: "a"})),
    (list[Point] | None, [Point(1, NOW)]),
]


@pytest.mark.parametrize(("annotation", "value"), ROUND_TRIPS, ids=lambda v: repr(v)[:30])
def test_values_survive_the_round_trip(annotation: Any, value: Any) -> None:
    codec = codec_for(annotation)
    codec.check()
    back = codec.decode(1, codec.encode((value,), {}))["x"]
    assert back == value
    assert type(back) is type(value)
    assert codec.decode_result(codec.encode_result(value)) == value


# -0.0 is refused
_FLOATS = st.floats(allow_nan=False, allow_infinity=False).map(lambda number: number + 0.0)


def rows(values: list[dict[str, float | str | bool | None]]) -> None: ...


@given(
    st.lists(
        st.dictionaries(
            st.text(st.characters(exclude_characters="\x00", codec="utf-8")),
            st.none() | st.booleans() | _FLOATS | st.just("text"),
        )
    )
)
def test_typed_payloads_survive_the_round_trip(values: list[dict[str, Any]]) -> None:
    codec = codec_of(rows)
    assert codec.decode(1, codec.encode((values,), {})) == {"values": values}


@given(st.datetimes(timezones=st.just(UTC)), st.decimals(allow_nan=False, allow_infinity=False), st.uuids())
def test_scalars_survive_the_round_trip(when: datetime, amount: Decimal, key: UUID) -> None:
    for annotation, value in ((datetime, when), (Decimal, amount), (UUID, key)):
        codec = codec_for(annotation)
        assert codec.decode(1, codec.encode((value,), {}))["x"] == value


def test_payloads_are_stored_by_name_and_defaults_are_not_stored() -> None:
    codec = codec_of(send_receipt)
    assert codec.encode((1,), {}) == '{"order_id":1}'
    assert (
        codec.encode((1, "x"), {})
        == codec.encode((), {"order_id": 1, "note": "x"})
        == '{"order_id":1,"note":"x"}'
    )
    assert codec.decode(1, '{"order_id":1}') == {"order_id": 1}


def test_an_int_is_taken_for_a_float() -> None:
    codec = codec_for(float)
    assert codec.encode((3,), {}) == '{"x":3.0}'
    assert codec.decode(1, '{"x":3}') == {"x": 3.0}


def test_subclasses_of_scalars_are_written_plain() -> None:
    assert codec_for(int).encode((Level.HIGH,), {}) == '{"x":3}'


def test_models_are_stored_by_field_name_and_read_by_alias_too() -> None:
    codec = codec_for(Person)
    person = Person(fullName="n", born=date(2000, 1, 1))
    assert codec.encode((person,), {}) == '{"x":{"name":"n","born":"2000-01-01"}}'
    assert codec.decode(1, '{"x":{"fullName":"n","born":"2000-01-01"}}') == {"x": person}


REFUSED_ARGUMENTS: list[tuple[Codec, tuple[Any, ...], dict[str, Any], str]] = [
    (codec_of(send_receipt), ("1",), {}, "argument 'order_id' of shop.send_receipt must be int, not str '1'"),
    (
        codec_of(send_receipt),
        (True,),
        {},
        "argument 'order_id' of shop.send_receipt must be int, not bool True",
    ),
    (
        codec_of(send_receipt),
        (1.0,),
        {},
        "argument 'order_id' of shop.send_receipt must be int, not float 1.0",
    ),
    (codec_of(send_receipt), (1, None), {}, "argument 'note' of shop.send_receipt must be str, not None"),
    (
        codec_of(send_receipt),
        (),
        {},
        (
            "shop.send_receipt: missing a required argument: 'order_id'. "
            "Call it as send_receipt(order_id: int, note: str = '')"
        ),
    ),
    (
        codec_of(send_receipt),
        (1,),
        {"queue": "mail"},
        (
            "shop.send_receipt: got an unexpected keyword argument 'queue'. Options go into "
            "using(queue=...), "
            "arguments into send_receipt(order_id: int, note: str = '')"
        ),
    ),
    (
        codec_of(injected),
        (),
        {"job": None, "order_id": 1},
        "shop.injected: 'job' is injected by the worker; leave it out. Call it as injected(order_id: int)",
    ),
    (
        codec_for(list[int]),
        ([1, "x", "y"],),
        {},
        (
            "argument 'x' of shop.f must be list[int]: 1: Input should be a valid integer, "
            "not str 'x' (and 1 more)"
        ),
    ),
    (codec_for(dict[str, Any]), ([],), {}, "argument 'x' of shop.f must be dict[str, Any], not list []"),
    (
        codec_for(datetime),
        ("2026-01-01",),
        {},
        "argument 'x' of shop.f must be datetime: Input should be a valid datetime, not str '2026-01-01'",
    ),
    (
        codec_for(Line),
        ({"sku": "a"},),
        {},
        "argument 'x' of shop.f must be Line: Input should be an instance of Line, not dict {'sku': 'a'}",
    ),
    (codec_for(Point), ({"x": 1},), {}, "argument 'x' of shop.f must be Point, not dict {'x': 1}"),
    (
        codec_for(Point),
        (Point("1", NOW),),  # type: ignore[arg-type]
        {},
        "argument 'x' of shop.f must be Point: Expected `int`, got `str` - at `$.x`",
    ),
    (
        codec_for(float),
        (10**400,),
        {},
        "argument 'x' of shop.f must be float: the integer is too large for a float",
    ),
]


@pytest.mark.parametrize(
    ("codec", "args", "kwargs", "message"), REFUSED_ARGUMENTS, ids=range(len(REFUSED_ARGUMENTS))
)
def test_arguments_that_do_not_fit(
    codec: Codec, args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArguments) as caught:
        codec.encode(args, kwargs)
    assert str(caught.value) == message


LOOP: list[Any] = []
LOOP.append(LOOP)
TOO_DEEP = "nested more than 180 levels deep"
FLATTEN = ". Flatten it, or pass it as one string"


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (
            Any,
            NOW,
            (
                "payload value x is datetime datetime.datetime(2026, 1, 2...tzinfo=datetime.timezone.utc), "
                "which is not JSON. "
                "Annotate it with its type so that it can be converted, or pass a JSON value"
            ),
        ),
        (
            list[float],
            [float("nan")],
            "payload value x[0] is nan, which JSON does not have. Pass None or a string",
        ),
        (
            Any,
            nested(10_000),
            "payload value x[0][0][0] ... [0][0] is nested more than 500 levels deep" + FLATTEN,
        ),
        (Any, LOOP, "payload value x[0] contains itself. Build a value without cycles"),
        (list[Any] | None, nested(190), f"payload value x of shop.f is {TOO_DEEP}" + FLATTEN),
        (
            list[Any] | None,
            nested(10_000),
            f"payload value x of shop.f is {TOO_DEEP}, or containing itself" + FLATTEN,
        ),
        (list[Any] | None, LOOP, f"payload value x of shop.f is {TOO_DEEP}, or containing itself" + FLATTEN),
    ],
    ids=range(7),
)
def test_payloads_that_cannot_be_stored(annotation: Any, value: Any, message: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        codec_for(annotation).encode((value,), {})
    assert str(caught.value) == message


def test_what_a_producer_may_nest_a_worker_can_read() -> None:
    codec = codec_for(list[Any] | None)
    assert codec.decode(1, codec.encode((nested(180),), {})) == {"x": nested(180)}


def test_a_type_without_json_form_is_named_at_first_use() -> None:
    codec = codec_for(Plain)
    for use in (codec.check, lambda: codec.encode((Plain(),), {})):
        with pytest.raises(TaskDefinitionError) as caught:
            use()
        assert str(caught.value).startswith(
            "parameter 'x' of shop.f has type Plain, which has no JSON form: "
            "Unable to generate pydantic-core schema"
        )
        assert str(caught.value).endswith(
            "Use a JSON type, a dataclass, a pydantic model or a msgspec.Struct"
        )
    with pytest.raises(PayloadError, match="which has no JSON form"):
        codec.decode(1, '{"x":1}')
    with pytest.raises(InvalidPayload, match=r"the return value of shop\.f has type Plain"):
        codec.encode_result(Plain())


def test_an_unknown_annotation_is_named_at_first_use() -> None:
    def f(x: "Nowhere") -> None: ...  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(TaskDefinitionError) as caught:
        codec_of(f).encode((1,), {})
    assert str(caught.value) == (
        "shop.f: the annotation 'Nowhere' of parameter 'x' is unknown: NameError: "
        "name 'Nowhere' is not defined. "
        "Import or define the name at module level, outside `if TYPE_CHECKING`"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"order_id":1,"oops":2,"more":3}',
            "shop.send_receipt has no parameter 'oops', 'more' (known: order_id, note)",
        ),
        ('{"note":"x"}', "the payload lacks 'order_id', which shop.send_receipt requires"),
        ('{"order_id":"1"}', "parameter 'order_id' of shop.send_receipt must be int: not str '1'"),
        ("[1]", "the payload of shop.send_receipt must be a JSON object, not list"),
        (
            "{",
            (
                "the payload is not readable JSON: "
                "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
            ),
        ),
    ],
)
def test_stored_payloads_that_cannot_be_decoded(text: str, message: str) -> None:
    with pytest.raises(PayloadError) as caught:
        codec_of(send_receipt).decode(1, text)
    assert str(caught.value) == message


def test_a_very_deep_stored_payload_is_a_payload_error() -> None:
    with pytest.raises(PayloadError, match="the payload is not readable JSON: "):
        codec_of(send_receipt).decode(1, "[" * 100_000 + "]" * 100_000)


def test_old_versions_are_upgraded_step_by_step() -> None:
    codec = codec_of(
        send_receipt,
        version=3,
        upgrade={
            1: lambda old: {"order": old["id"]},
            2: lambda old: {"order_id": old["order"], "note": "upgraded"},
        },
    )
    assert codec.versions == {1, 2, 3}
    assert codec.decode(1, '{"id":7}') == {"order_id": 7, "note": "upgraded"}
    assert codec.decode(2, '{"order":7}') == {"order_id": 7, "note": "upgraded"}
    assert codec.decode(3, '{"order_id":7}') == {"order_id": 7}


@pytest.mark.parametrize(
    ("upgrade", "version", "message"),
    [
        (
            lambda old: old["id"],
            1,
            "upgrading the payload of shop.send_receipt from version 1 to 2 failed: KeyError: 'id'",
        ),
        (
            lambda old: [old],
            1,
            "upgrading the payload of shop.send_receipt from version 1 to 2 returned list, not a dict",
        ),
        (lambda old: old, 3, "shop.send_receipt takes payload version 1, 2, not 3"),
    ],
)
def test_upgrades_that_fail(upgrade: Callable[[Any], Any], version: int, message: str) -> None:
    with pytest.raises(PayloadError) as caught:
        codec_of(send_receipt, version=2, upgrade={1: upgrade}).decode(version, "{}")
    assert str(caught.value) == message


def untyped(x):  # type: ignore[no-untyped-def]
    return x


@pytest.mark.parametrize(
    ("codec", "value", "message"),
    [
        (
            codec_of(send_receipt),
            5,
            (
                "the result of shop.send_receipt does not fit its return annotation str: not int 5. "
                "Correct the annotation or the return value"
            ),
        ),
        (
            codec_of(send_receipt),
            "x" * 70_000,
            (
                "shop.send_receipt: result is 70,002 bytes of JSON, more than the limit of 65,536 (64 KiB). "
                "Store it elsewhere (a table, a file, object storage) and return a reference"
            ),
        ),
        (
            codec_of(untyped),
            {1, 2},
            (
                "shop.untyped: result is set {1, 2}, which is not JSON. "
                "Annotate it with its type so that it can be converted, or pass a JSON value"
            ),
        ),
    ],
    ids=range(3),
)
def test_results_that_cannot_be_stored(codec: Codec, value: Any, message: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        codec.encode_result(value)
    assert str(caught.value) == message


def test_results() -> None:
    assert codec_of(injected).encode_result(None) == "null"
    assert codec_of(injected).decode_result(None) is None
    assert codec_of(untyped).decode_result('{"a":1}') == {"a": 1}
    with pytest.raises(PayloadError) as caught:
        codec_of(send_receipt).decode_result("5")
    assert str(caught.value) == "the stored result of shop.send_receipt does not fit str: not int 5"


def test_plain_types_need_no_library() -> None:
    code = (
        "import sys\n"
        "from holdfast.registry import Registry\n"
        "r = Registry()\n"
        "@r.task\n"
        "def f(a: int, b: str = '', c: dict | list = ()): ...\n"
        "f.job(1)\n"
        "assert not {'pydantic', 'msgspec'} & set(sys.modules), 'imported too early'\n"
        "f.job(1, c=[1])\n"
        "assert 'pydantic' in sys.modules\n"
        "assert 'msgspec' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_payload_text_is_json() -> None:
    assert json.loads(codec_of(send_receipt).encode((1, '"\\\n'), {})) == {"order_id": 1, "note": '"\\\n'}


def outcome(codec: Codec, value: Any) -> str:
    try:
        return codec.encode((value,), {})
    except (InvalidArguments, InvalidPayload) as error:
        return f"{type(error).__name__}: {error}"


ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=[]), max_size=20)
PLAIN_VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | ANY_TEXT
    | st.just(Level.HIGH)
    | st.just([1, {"a": None}])
)


@given(PLAIN_VALUES, st.sampled_from([int, str, float, bool, None, Any, dict, list]))
def test_the_quick_way_writes_what_the_other_does(value: Any, annotation: Any) -> None:
    first, codec = codec_for(annotation), codec_for(annotation)
    codec.check()
    assert not first._plain_types  # the first job of a task goes the other way
    assert outcome(codec, value) == outcome(first, value)


@pytest.mark.parametrize(
    ("value", "refusal"),
    [
        ("a\0b", "NUL character"),
        ("\ud800", "surrogate"),
        (float("nan"), "NaN|nan"),
        (10**1001, "digits"),
        (10**5000, "digits"),
        ("x" * 300_000, "more than the limit"),
    ],
    ids=["nul", "surrogate", "nan", "long number", "longer", "large"],
)
def test_the_quick_way_lets_nothing_through(value: Any, refusal: str) -> None:
    codec = codec_for(Any)
    codec.check()
    with pytest.raises(InvalidPayload, match=refusal):
        codec.encode((value,), {})


def test_the_quick_way_is_taken() -> None:
    codec = codec_of(send_receipt)
    codec.check()
    given = {"order_id": 7, "note": 'é "\\\n'}
    assert codec._short(given.items()) == codec._dump(given)
