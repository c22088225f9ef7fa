"""How event types evolve: each change with its verdict, and with the text that says what, for whom and what to do."""

import dataclasses
import datetime
import decimal
import json
import uuid
from typing import Annotated, Any, Literal, NotRequired, Optional, Union

import msgspec
import pytest
from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    NaiveDatetime,
    PastDate,
    computed_field,
    create_model,
)
from typing_extensions import TypedDict

from holdfast.shapes.events.contract import EventType
from holdfast.shapes.events.contracts.algebra import covers
from holdfast.shapes.events.contracts.catalog import Declared, contract_of
from holdfast.shapes.events.contracts.check import Verdict, verdicts
from holdfast.shapes.events.contracts.explain import reasons
from holdfast.shapes.events.contracts.schemas import schemas_of
from holdfast.tasks.convert import Misfit

# ruff: noqa: UP007, UP045 the ways that users write it


class V1(BaseModel):
    order_id: int
    cents: int
    note: Optional[str] = None


class AddOptional(V1):
    coupon: Optional[str] = None


class AddRequired(V1):
    currency: str


class DropOptional(BaseModel):
    order_id: int
    cents: int


class DropRequired(BaseModel):
    order_id: int
    note: Optional[str] = None


class OtherType(BaseModel):
    order_id: str
    cents: int
    note: Optional[str] = None


class Wider(BaseModel):
    order_id: int | str
    cents: int
    note: Optional[str] = None


class Tighter(BaseModel):
    order_id: int
    cents: int = Field(ge=0)
    note: Optional[str] = None


class NoDefault(BaseModel):
    order_id: int
    cents: int
    note: Optional[str]


class NoNull(BaseModel):
    order_id: int
    cents: int
    note: str = ""


class Closed(V1):
    model_config = ConfigDict(extra="forbid")


class AsFloat(BaseModel):
    order_id: int
    cents: float
    note: Optional[str] = None


class Two(BaseModel):
    s: Literal["a", "b"]


class Three(BaseModel):
    s: Literal["a", "b", "c"]


class Line(BaseModel):
    x: int


class LongerLine(BaseModel):
    x: int
    y: int


class Lines(BaseModel):
    lines: list[Line]


class LongerLines(BaseModel):
    lines: list[LongerLine]


class Either(BaseModel):
    p: Line | str


class OneOfThem(BaseModel):
    p: Line


class Counts(BaseModel):
    m: dict[str, int]


class MaybeCounts(BaseModel):
    m: dict[str, int | None]


class Digits(BaseModel):
    k: str = Field(pattern=r"^ord_[0-9]+$")


class HexDigits(BaseModel):
    k: str = Field(pattern=r"^ord_[0-9a-f]+$")


class Dates(BaseModel):
    t: datetime.datetime
    d: decimal.Decimal
    u: uuid.UUID


class Tree(BaseModel):
    v: int
    kids: list["Tree"] = []


class HeavierTree(BaseModel):
    v: int
    kids: list["HeavierTree"] = []
    w: int = 0


class Struct(msgspec.Struct):
    a: int
    b: str | None = None


class LongerStruct(msgspec.Struct):
    a: int
    b: str | None = None
    c: int = 0


@dataclasses.dataclass
class Plain:
    a: int
    when: datetime.date


@dataclasses.dataclass
class PlainText:
    a: int
    when: str


class Loose(TypedDict):
    a: int
    b: NotRequired[str]


class Strict(TypedDict):
    a: int
    b: str


# The change, then whether new code reads old events, and old code new ones.
CASES: list[tuple[str, Any, Any, str, str]] = [
    ("add optional", V1, AddOptional, "yes", "yes"),
    ("add required", V1, AddRequired, "no", "yes"),
    ("drop optional", V1, DropOptional, "yes", "yes"),
    ("drop required", V1, DropRequired, "yes", "no"),
    ("other type", V1, OtherType, "no", "no"),
    ("wider", V1, Wider, "yes", "no"),
    ("tighter", V1, Tighter, "no", "yes"),
    ("default removed", V1, NoDefault, "yes", "yes"),
    ("null no more", V1, NoNull, "no", "yes"),
    ("reader closed", V1, Closed, "yes", "yes"),
    ("closed, then add", Closed, AddOptional, "yes", "no"),
    ("int to float", V1, AsFloat, "yes", "unknown"),
    ("enum grows", Two, Three, "yes", "no"),
    ("enum shrinks", Three, Two, "no", "yes"),
    ("required in a list", Lines, LongerLines, "unknown", "yes"),
    ("union narrowed", Either, OneOfThem, "no", "yes"),
    ("null in a map", Counts, MaybeCounts, "yes", "unknown"),
    ("pattern widened", Digits, HexDigits, "unknown", "no"),
    ("dates stay", Dates, Dates, "yes", "yes"),
    ("recursive, add", Tree, HeavierTree, "unknown", "unknown"),
    ("msgspec, add default", Struct, LongerStruct, "yes", "yes"),
    ("a date becomes text", Plain, PlainText, "yes", "no"),
    ("may be missing no more", Loose, Strict, "no", "yes"),
]


def verdict(old: Any, new: Any, **options: Any) -> Verdict:
    kinds = [EventType("order.paid", n, cls, None, **options) for n, cls in ((1, old), (2, new))]
    code = {(k.name, k.version): Declared(k, contract_of(k)) for k in kinds}
    (found,) = verdicts(code, {}, "the database")
    return found


@pytest.mark.parametrize(
    ("old", "new", "backward", "forward"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_each_change_has_its_verdict_and_every_no_its_reason(
    old: Any, new: Any, backward: str, forward: str
) -> None:
    found = verdict(old, new)
    assert (found.backward, found.forward) == (backward, forward)
    assert found.compatible == (backward == forward == "yes")
    assert bool(found.changes) != found.compatible
    assert "where cannot be said" not in str(found)
    for wanted, spared in (("backward", forward), ("forward", backward)):
        one = verdict(old, new, compatibility=wanted)
        assert one.compatible == ((forward if wanted == "forward" else backward) == "yes"), (wanted, spared)
    assert verdict(old, new, compatibility="none").compatible


READ = "or declare version 1 and @upcast it to version 2."
FORWARD = (
    'or declare version 2 with compatibility="backward" and replace all code of version 1 before anybody publishes '
    "version 2."
)
TEXTS = {
    "add required": [
        "currency: version 2 code requires it, and version 1 events do not have it. Give it a default, "
        + READ
    ],
    "drop required": [
        "cents: version 1 code requires it, and version 2 events do not have it. Keep the field, and keep writing it, "
        + FORWARD
    ],
    "other type": [
        f"order_id: it is an integer in version 1 events, and version 2 code takes text. Take an integer too, {READ}",
        (
            "order_id: it is text in version 2 events, and version 1 code takes an integer. Keep writing an integer, or "
            f"give the new form another name, {FORWARD}"
        ),
    ],
    "tighter": [
        "cents: version 2 code wants it to be at least 0, and version 1 events need not. Take the old values too, "
        + READ
    ],
    "null no more": [
        f"note: it may be null in version 1 events, and version 2 code takes text. Let it be None too, {READ}"
    ],
    "closed, then add": [
        (
            "coupon: version 2 events have it, and version 1 code takes no fields that it does not declare. Leave the field "
            f"out of this version, until no code is left that forbids others, {FORWARD}"
        )
    ],
    "enum grows": [
        's: version 2 events may have "c", and version 1 code takes "a", "b". Do not write "c" until all code takes it, '
        + FORWARD
    ],
    "a date becomes text": [
        (
            "when: version 1 code wants it to have the format date, and version 2 events need not. Keep the rule that older "
            f"code relies on, {FORWARD}"
        )
    ],
    "required in a list": [
        f"lines[].y: version 2 code requires it, and version 1 events do not have it. Give it a default, {READ}",
        "the data: it cannot be proved that version 2 code takes all that version 1 events may have. That counts as no. "
        "Types that contain themselves and patterns that differ are such cases. Make it plainer, " + READ,
    ],
}


@pytest.mark.parametrize("case", TEXTS)
def test_the_text_says_what_for_whom_and_what_to_do(case: str) -> None:
    old, new = next((c[1], c[2]) for c in CASES if c[0] == case)
    assert verdict(old, new).changes == TEXTS[case]


def test_what_cannot_be_decided_counts_as_no_and_says_so() -> None:
    found = verdict(Tree, HeavierTree)
    assert not found.compatible
    assert [change.split(". ")[0] for change in found.changes] == [
        (
            "the data: no difference was found that matters, but it cannot be proved that version 2 code takes all that "
            "version 1 events may have"
        ),
        (
            "the data: no difference was found that matters, but it cannot be proved that version 1 code takes all that "
            "version 2 events may have"
        ),
    ]


def field(kind: Any) -> Any:
    """A model with one field."""
    return create_model("One", x=(kind, ...))


def struct(kind: Any) -> Any:
    return msgspec.defstruct("One", [("x", kind)], module=__name__)


D = decimal.Decimal
AT = datetime.datetime
DAY = datetime.date
SPAN = datetime.timedelta
AWARE = Annotated[AT, msgspec.Meta(tz=True)]
NAMES = Literal["a", "b"]
# What the second class does not take of the first, though JSON Schema has the same words for both.
RULED: list[tuple[str, Any, Any, Any, Any]] = [
    ("text, then Decimal", field, str, D, "abc"),
    ("Decimal not below 0", field, D, Annotated[D, Field(ge=0)], D(-5)),
    ("Decimal of 2 places", field, D, Annotated[D, Field(decimal_places=2)], D("1.234")),
    ("Decimal of 4 digits", field, D, Annotated[D, Field(max_digits=4)], D(12345)),
    ("number, then few digits", field, float, Annotated[D, Field(max_digits=3)], 1.2345),
    ("number, then few places", field, float, Annotated[D, Field(decimal_places=1)], 1.25),
    ("time with its zone", field, AT, AwareDatetime, AT(2026, 1, 1)),
    ("time without a zone", field, AT, NaiveDatetime, AT(2026, 1, 1, tzinfo=datetime.UTC)),
    ("day not before another", field, DAY, Annotated[DAY, Field(ge=DAY(2020, 1, 1))], DAY(2000, 1, 1)),
    ("day in the past", field, DAY, PastDate, DAY(9000, 1, 1)),
    ("not longer than a day", field, SPAN, Annotated[SPAN, Field(le=SPAN(1))], SPAN(2)),
    ("keys become numbers", field, dict[str, int], dict[int, int], {"a": 1}),
    ("keys have a least", field, dict[int, int], dict[Annotated[int, Field(ge=3)], int], {1: 1}),
    ("keys of either kind", field, dict[str, int], dict[int | uuid.UUID, int], {"a": 1}),
    ("msgspec: text, then a time", struct, str, AT, "abc"),
    ("msgspec: text, then an hour", struct, str, datetime.time, "abc"),
    ("msgspec: in a list", struct, list[str], list[AT], ["abc"]),
    ("msgspec: in a tuple", struct, tuple[int, str], tuple[int, AT], (1, "abc")),
    ("msgspec: in a union", struct, int | str | None, int | AT | None, "abc"),
    ("msgspec: with its zone", struct, AT, AWARE, AT(2026, 1, 1)),
    ("msgspec: keys become numbers", struct, dict[str, int], dict[int, int], {"a": 1}),
    ("msgspec: keys become ids", struct, dict[str, int], dict[uuid.UUID, int], {"a": 1}),
    ("msgspec: keys become few", struct, dict[str, int], dict[NAMES, int], {"c": 1}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "before", "after", "value"), [c[1:] for c in RULED], ids=[c[0].replace(" ", "_") for c in RULED]
)
def test_a_rule_that_json_schema_has_no_word_for_is_part_of_the_contract(
    make: Any, before: Any, after: Any, value: Any
) -> None:
    old, new = make(before), make(after)
    written = json.loads(json.dumps(EventType("x", 1, old, None).encode(old(x=value))))
    with pytest.raises(Misfit):
        EventType("x", 2, new, None).converter.load(written)
    found = verdict(old, new)
    assert found.backward != "yes"
    assert any(change.startswith("x") for change in found.changes), "and the text says where"
    for cls in (old, new):
        both = verdict(cls, cls)
        assert (both.backward, both.forward) == ("yes", "yes")


@pytest.mark.parametrize(
    ("make", "before", "after"),
    [
        (field, AwareDatetime, AT),
        (field, Annotated[D, Field(ge=0)], D),
        (field, Annotated[int, Field(ge=-9, le=99)], Annotated[D, Field(max_digits=2, decimal_places=0)]),
        (field, dict[int, int], dict[str, int]),
        (field, dict[int, int], dict[int | str, int]),
        (field, D, str),
        (struct, AWARE, AT),
        (struct, AT, str),
        (struct, dict[NAMES, int], dict[str, int]),
        (struct, dict[Literal["a"], int], dict[NAMES, int]),
    ],
)
def test_a_rule_may_be_given_up(make: Any, before: Any, after: Any) -> None:
    assert verdict(make(before), make(after)).backward == "yes"


def test_a_rule_in_a_class_within_a_class_is_found_and_explained() -> None:
    class Inner(msgspec.Struct):
        at: datetime.datetime

    class Outer(msgspec.Struct):
        rows: dict[str, list[Inner]]

    class InnerText(msgspec.Struct, tag="Inner"):
        at: str

    old = msgspec.defstruct("Outer", [("rows", dict[str, list[InnerText]])], module=__name__)
    found = verdict(old, Outer)
    assert found.backward != "yes"
    assert "rows.*[].at: version 2 code wants it to have the format date-time" in found.changes[0]
    aware = verdict(field(AT), field(AwareDatetime)).changes
    assert "x: version 2 code wants it to keep the rule `aware`, and version 1 events need not." in aware[0]


def test_patterns_and_values_with_braces_are_shown_as_they_are() -> None:
    found = verdict(field(str), field(Annotated[str, Field(pattern=r"^[0-9]{4}$")]))
    assert "x: version 2 code wants it to have the pattern ^[0-9]{4}$, and" in found.changes[0]
    found = verdict(field(Literal["{}", "{x}"]), field(Literal["{}"]))
    assert found.changes[0].startswith(
        'x: version 1 events may have "{x}", and version 2 code takes "{}". Keep'
    )


def test_a_writer_writes_every_field_and_no_other() -> None:
    class Computed(BaseModel):
        a: int = 1
        secret: str = Field(default="", exclude=True)

        @computed_field  # type: ignore[prop-decorator]
        @property
        def twice(self) -> int:
            return 2 * self.a

    kind = EventType("x", 1, Computed, None)
    found = schemas_of(kind)
    assert (found.writer["required"], found.writer["additionalProperties"]) == (["a"], False)
    assert set(found.writer["properties"]) == {"a"} == set(kind.encode(Computed()))
    assert "required" not in found.reader

    class Shy(msgspec.Struct, omit_defaults=True):
        a: int
        b: int = 0

    kind = EventType("x", 1, Shy, None)
    assert kind.encode(Shy(1)) == {"a": 1}
    assert covers({"type": "object", "required": ["b"]}, schemas_of(kind).writer) == "no"
    assert covers({"type": "object", "required": ["a"]}, schemas_of(kind).writer) == "yes"


class Nested(msgspec.Struct):
    inner: list[Struct]
    maybe: int | msgspec.UnsetType = msgspec.UNSET


def test_a_struct_that_leaves_fields_out_is_known_as_one() -> None:
    writer = schemas_of(EventType("x", 1, Nested, None)).writer
    assert (
        covers({"$ref": "#/$defs/N", "$defs": {"N": {"type": "object", "required": ["maybe"]}}}, writer)
        != "yes"
    )


def test_texts_for_people_change_no_digest() -> None:
    class First(BaseModel):
        """One."""

        a: int = Field(description="first", examples=[1])

    class Second(BaseModel):
        """Two."""

        a: int = Field(title="A", description="second")

    class Third(BaseModel):
        a: int = Field(ge=0)

    digests = [schemas_of(EventType("x", 1, cls, None)).digest for cls in (First, Second, Third)]
    assert digests[0] == digests[1] != digests[2]


def test_fields_that_are_called_like_words_of_a_schema_are_fields() -> None:
    class Tricky(BaseModel):
        title: str
        description: int
        properties: Union[int, None] = None
        required: list[str] = []
        default: str = ""

    class TrickyToo(BaseModel):
        title: int
        description: int
        properties: Union[int, None] = None
        required: list[str] = []
        default: str = ""

    assert verdict(Tricky, Tricky).compatible
    found = verdict(Tricky, TrickyToo)
    assert (found.backward, [change.split(":")[0] for change in found.changes]) == ("no", ["title", "title"])


def test_reasons_of_values_lists_and_ranges() -> None:
    def said(writer: Any, reader: Any) -> list[str]:
        return [f"{r.path}: {r.what.format(w='w', r='r')}" for r in reasons(writer, reader)]

    def of(part: Any) -> dict[str, Any]:
        return {"type": "object", "properties": {"a": part}, "required": ["a"], "additionalProperties": False}

    integer, text = {"type": "integer"}, {"type": "string"}
    pair = {"type": "array", "prefixItems": [integer, text], "minItems": 2, "maxItems": 2}
    assert said(of(pair), of({"type": "array", "items": {"type": ["integer", "string"]}})) == []
    assert said(of(pair), of({"type": "array", "items": integer})) == [
        "a[1]: it is text in w events, and r code takes an integer"
    ]
    assert said(of({"type": "array", "items": integer}), of({**pair, "prefixItems": [integer, integer]})) == [
        "a: r code wants its number of items to be at least 2, and w events need not",
        "a: r code wants its number of items to be at most 2, and w events need not",
    ]
    assert said(of({"const": 3}), of({"type": "integer", "exclusiveMinimum": 2})) == []
    assert said(of({"type": "integer", "exclusiveMinimum": 2}), of({"type": "integer", "minimum": 3})) == []
    assert said(of({"type": "number", "exclusiveMinimum": 2}), of({"type": "number", "minimum": 3})) == [
        "a: r code wants it to be at least 3, and w events need not"
    ]
    assert said(of({"enum": ["ab", "x"]}), of({"type": "string", "pattern": "^a"})) == [
        "a: r code wants it to have the pattern ^a, and w events need not"
    ]
    assert said(of({}), of(text)) == ["a: it is anything in w events, and r code takes text"]
    assert said(of({"type": "boolean"}), of({"const": True})) == [
        "a: w events may have false, and r code takes true"
    ]
