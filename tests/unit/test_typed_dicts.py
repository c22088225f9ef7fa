"""TypedDict of the standard library, which pydantic reads from Python 3.12 on only: here it is read by 3.11 too."""

from dataclasses import dataclass
from typing import Annotated, Any, Generic, NotRequired, Optional, Required, TypedDict, TypeVar

import pytest
from typing_extensions import TypedDict as LaterTypedDict

from holdfast.tasks.convert import Misfit, Unsupported, converter

T = TypeVar("T")


class Line(TypedDict):
    sku: str
    note: NotRequired[str]


class Order(TypedDict, total=False):
    """With what it leads to: another one, and itself."""

    id: Required[int]
    lines: list[Line]
    before: "Order | None"


class Later(LaterTypedDict):
    order: Order


class Box(TypedDict, Generic[T]):
    value: T


@dataclass
class Parcel:
    order: Order
    others: dict[str, Line] | None = None


ORDER = {"id": 1, "lines": [{"sku": "a"}, {"sku": "b", "note": "!"}], "before": {"id": 0}}


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Line, {"sku": "a"}),
        (list[Line], [{"sku": "a"}]),
        (Optional[Line], None),  # noqa: UP045 the form of old code
        (Annotated[Line, "as it was ordered"], {"sku": "a"}),
        (Order, ORDER),
        (Later, {"order": ORDER}),
    ],
    ids=str,
)
def test_it_is_read_and_written_wherever_it_stands(annotation: Any, value: Any) -> None:
    made = converter(annotation)
    assert made.dump(value) == value
    assert made.load(value) == value


def test_a_dataclass_may_have_one() -> None:
    made = converter(Parcel)
    assert made.load({"order": ORDER, "others": {"x": {"sku": "c"}}}) == Parcel(ORDER, {"x": {"sku": "c"}})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"lines": []}, "id: Field required"),
        ({"id": 1, "lines": [{"note": "no sku"}]}, "lines.0.sku: Field required"),
        ({"id": 1, "before": {"id": "0"}}, "before.id: Input should be a valid integer"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_place(value: Any, why: str) -> None:
    with pytest.raises(Misfit, match=why):
        converter(Order).load(value)


def test_its_schema_has_its_name_and_what_must_be_there() -> None:
    from holdfast.tasks.convert import PydanticConverter

    made = converter(Line)
    assert isinstance(made, PydanticConverter)
    schema = made.json_schema()
    assert (schema["title"], schema["required"]) == ("Line", ["sku"])


def test_one_with_parameters_is_refused_where_nothing_says_what_they_stand_for() -> None:
    import sys

    if sys.version_info >= (3, 12):
        assert converter(Box[int]).load({"value": 1}) == {"value": 1}
        return
    with pytest.raises(Unsupported, match=r"typing_extensions\.TypedDict"):
        converter(Box[int])
