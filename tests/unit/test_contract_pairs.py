"""Random pairs of models: what the algebra says yes to is true of events, and the explanation agrees with it."""

import datetime
import decimal
import uuid
from collections.abc import Callable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, create_model

from holdfast.shapes.events.contract import EventType
from holdfast.shapes.events.contracts.algebra import covers
from holdfast.shapes.events.contracts.explain import reasons
from holdfast.shapes.events.contracts.schemas import schemas_of
from holdfast.tasks.convert import Misfit


class Inner(BaseModel):
    x: int


class LongerInner(BaseModel):
    x: int
    y: str = ""


class StrictInner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    x: int


NAMES = ("a", "b", "c")
TYPES: list[Any] = [
    int, float, str, bool, None, datetime.datetime, datetime.date, uuid.UUID, decimal.Decimal,
    Literal["a"], Literal["a", "b"], Literal[1, "a"], Literal[True], Inner, LongerInner, StrictInner,
    Annotated[int, Field(ge=0)], Annotated[int, Field(gt=0, lt=10)], Annotated[int, Field(multiple_of=2)],
    Annotated[float, Field(ge=0)], Annotated[float, Field(gt=0)], Annotated[str, Field(max_length=3)],
    Annotated[str, Field(min_length=1, max_length=5)], Annotated[str, Field(pattern="^a")],
    Annotated[list[int], Field(max_length=2)], tuple[int, str], tuple[int, int], set[int],
]  # fmt: skip


def wrapped(base: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        base.map(lambda t: list[t]),  # type: ignore[valid-type]
        base.map(lambda t: dict[str, t]),  # type: ignore[valid-type]
        st.tuples(base, base).map(lambda pair: Union[pair[0], pair[1]]),  # noqa: UP007
        base.map(lambda t: Union[t, None]),  # noqa: UP007
    )


hints = st.recursive(st.sampled_from(TYPES), wrapped, max_leaves=3)


@st.composite
def models(draw: st.DrawFn) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True)):
        hint = draw(hints)
        optional = draw(st.booleans())
        fields[name] = (Union[hint, None], None) if optional else (hint, ...)  # noqa: UP007
    config = ConfigDict(extra="forbid") if draw(st.integers(0, 5)) == 0 else None
    return create_model("Model", __config__=config, **fields)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[type[BaseModel], type[BaseModel]]:
    """Two models that are much alike: of the second, most fields are those of the first."""
    old = draw(models())
    fields: dict[str, Any] = {}
    for name in NAMES:
        had = old.model_fields.get(name)
        change = draw(st.sampled_from(("keep", "keep", "keep", "drop", "new", "optional")))
        if change == "new" or (had is None and change == "optional"):
            fields[name] = (draw(hints), ...)
        elif had is not None and change == "optional":
            fields[name] = (Union[had.rebuild_annotation(), None], None)  # noqa: UP007
        elif had is not None and change == "keep":
            fields[name] = (had.rebuild_annotation(), ... if had.is_required() else None)
    config = ConfigDict(extra="forbid") if draw(st.integers(0, 5)) == 0 else None
    return old, create_model("Model", __config__=config, **fields)


def events_of(model: type[BaseModel]) -> st.SearchStrategy[BaseModel]:
    """Instances of the model, whatever its constraints: those that pydantic takes."""

    def build(given: dict[str, Any]) -> BaseModel | None:
        try:
            return model.model_validate(given, strict=True)
        except ValueError:
            return None

    fields = {name: part(info.rebuild_annotation()) for name, info in model.model_fields.items()}
    return st.fixed_dictionaries(fields).map(build).filter(lambda made: made is not None)  # type: ignore[return-value]


INTEGERS = st.integers(1, 8) | st.integers(-5, 20) | st.just(2)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    None: st.none(),
    type(None): st.none(),
    float: st.floats(allow_nan=False, allow_infinity=False, min_value=0.001, max_value=1e6),
    int: INTEGERS,
    str: st.sampled_from(("a", "ab", "abc")) | st.text("ab1", max_size=6),
    decimal.Decimal: st.decimals(
        allow_nan=False, allow_infinity=False, places=2, min_value=-1000, max_value=1000
    ),
    datetime.datetime: st.datetimes(timezones=st.just(datetime.UTC)),
}
MADE: dict[Any, Callable[..., st.SearchStrategy[Any]]] = {
    Annotated: lambda hint, *_: part(hint),
    Literal: lambda *values: st.sampled_from(values),
    list: lambda hint: st.lists(part(hint), max_size=3),
    set: lambda hint: st.sets(part(hint), max_size=3),
    dict: lambda _, hint: st.dictionaries(st.sampled_from(("a", "k")), part(hint), max_size=2),
    tuple: lambda *hints: st.tuples(*map(part, hints)),
}


def part(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a hint, as Python has them; those that do not keep its limits are left out later."""
    if hint in PLAIN:
        return PLAIN[hint]
    make = MADE.get(get_origin(hint))
    if make is not None:
        return make(*get_args(hint))
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return events_of(hint)
    return st.one_of(*map(part, get_args(hint))) if get_args(hint) else st.from_type(hint)


SETTINGS = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
LONG = settings(SETTINGS, max_examples=1500)


def check_pair(pair: tuple[type[BaseModel], type[BaseModel]], data: st.DataObject, events: int) -> None:
    old, new = (EventType("x.y", n, cls, None) for n, cls in enumerate(pair, 1))
    writer, reader = schemas_of(old).writer, schemas_of(new).reader
    answer, found = covers(reader, writer), reasons(writer, reader)
    if answer == "yes":
        assert found == [], (writer, reader)
        for _ in range(events):
            event = old.encode(data.draw(events_of(pair[0])))
            try:
                new.converter.load(event)
            except Misfit as error:
                pytest.fail(f"{event} does not fit: {error}\n{writer}\n{reader}")
    elif answer == "no":
        assert found, (writer, reader)


@SETTINGS
@given(pairs(), st.data())
def test_what_is_covered_is_read_and_the_reasons_agree(
    pair: tuple[type[BaseModel], type[BaseModel]], data: st.DataObject
) -> None:
    check_pair(pair, data, 5)


@pytest.mark.long
@LONG
@given(pairs(), st.data())
def test_what_is_covered_is_read_and_the_reasons_agree_at_length(
    pair: tuple[type[BaseModel], type[BaseModel]], data: st.DataObject
) -> None:
    check_pair(pair, data, 10)


@SETTINGS
@given(models(), st.data())
def test_what_is_written_fits_its_own_writer_and_its_own_reader(
    model: type[BaseModel], data: st.DataObject
) -> None:
    """The schema of a writer is true: what publish() makes is described by it."""
    kind = EventType("x.y", 1, model, None)
    found = schemas_of(kind)
    event = kind.encode(data.draw(events_of(model)))
    assert jsonschema_rs.is_valid(found.writer, event), (event, found.writer)
    assert jsonschema_rs.is_valid(found.reader, event), (event, found.reader)
    assert reasons(found.writer, found.reader) == []
