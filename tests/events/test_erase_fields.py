"""`@event(erase=[...])`: the named fields are blanked, the others stay, and the event is read as before."""

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, TypedDict
from uuid import UUID

import msgspec
import psycopg
import pytest
from pydantic import BaseModel, Field
from tests.surface.running import Cli

from holdfast import Event, Holdfast, TaskDefinitionError, event, upcast
from holdfast.shapes.events.contract import type_of
from holdfast.shapes.events.procedures import Subscriptions
from holdfast.testing import Kit


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Types of one test are not those of the next."""
    monkeypatch.setattr("holdfast.shapes.events.contract.DECLARED", declared := dict[Any, Any]())
    monkeypatch.setattr("holdfast.shapes.events.erase.DECLARED", declared)


@dataclass
class Address:
    street: str
    town: str


def verbs(kit: Kit) -> Subscriptions:
    return Subscriptions(lambda: kit.app.database, "ann")


def data(kit: Kit) -> list[Any]:
    return [one.data for one in verbs(kit).read(0)]


def joined(**options: Any) -> Any:
    @event("customer.joined", key="customer:{customer}", **options)
    @dataclass
    class Joined:
        customer: int
        email: str
        name: str | None
        plan: str
        address: Address | None = None

    return Joined


PERSONAL = ["email", "name", "address.street"]


@pytest.mark.versions
def test_the_fields_that_a_type_names_are_blanked_and_the_others_stay(app: Holdfast, kit: Kit) -> None:
    joined_class = joined(erase=PERSONAL)
    app.publish(joined_class(1, "a@b.example", "Ann", "gold", Address("Main St 1", "Bath")))
    app.publish(joined_class(1, "a@b.example", "Ann", "gold"))
    app.publish(joined_class(2, "c@d.example", None, "free"))
    app.publish("note.taken", {"text": "said Ann"}, key="customer:1")
    assert verbs(kit).erase_key("customer:1", dry_run=True) == 3
    assert verbs(kit).erase_key("customer:1") == 3
    assert data(kit) == [
        {"customer": 1, "email": "", "name": None, "plan": "gold", "address": {"street": "", "town": "Bath"}},
        {"customer": 1, "email": "", "name": None, "plan": "gold", "address": None},
        {"customer": 2, "email": "c@d.example", "name": None, "plan": "free", "address": None},
        None,
    ]
    assert verbs(kit).erase_key("customer:1") == 0, "nothing is left to erase"
    assert verbs(kit).erase([3], dry_run=True) == 1
    assert verbs(kit).erase([3]) == 1
    assert data(kit)[2]["email"] == ""
    assert verbs(kit).erase([1], whole=True) == 1
    assert data(kit)[0] is None
    said = kit.sql("SELECT selection FROM holdfast.audit WHERE action = 'erase_events' ORDER BY id")
    fields = {"1 customer.joined": PERSONAL}
    assert [row["selection"].get("fields") for row in said] == [fields, fields, None]


def test_consumers_and_replays_read_what_is_left(app: Holdfast, kit: Kit) -> None:
    @event("customer.left", erase=["email", "born"])
    @dataclass
    class Left:
        email: str
        born: datetime | None
        plan: str

    got: list[Left] = []

    @app.on(Left, name="goodbye", start="start")
    def goodbye(event: Event[Left]) -> None:
        got.append(event.data)

    app.publish(Left("a@b.example", datetime(1990, 1, 2, tzinfo=UTC), "gold"))
    assert asyncio.run(_erased(verbs(kit), 1)) == 1
    kit.run_worker()
    assert got == [Left("", None, "gold")]
    goodbye.replay(0, again=True)
    kit.run_worker()
    assert got == [Left("", None, "gold")] * 2


async def _erased(found: Subscriptions, position: int) -> int:
    return await found.erase.arun([position])


def test_each_version_has_its_own_fields_and_is_upcast_with_its_blanks(app: Holdfast, kit: Kit) -> None:
    @event("mail.sent", version=1, erase=["to"])
    @dataclass
    class SentV1:
        to: str
        size: int

    @event("mail.sent", version=2, erase=["recipient"], compatibility="none")
    @dataclass
    class Sent:
        recipient: str
        size: int

    @upcast(SentV1, Sent)
    def renamed(old: SentV1) -> Sent:
        return Sent(old.to, old.size)

    got: list[Sent] = []

    @app.on(Sent, name="mails", start="start")
    def mails(event: Event[Sent]) -> None:
        got.append(event.data)

    app.publish_many([SentV1("a@b.example", 1), Sent("c@d.example", 2)])
    app.publish("mail.sent", {"who": "e@f.example"}, version=3)
    assert verbs(kit).erase([1, 2, 3]) == 3
    assert data(kit) == [{"to": "", "size": 1}, {"recipient": "", "size": 2}, None], "version 3 has no class"
    kit.run_worker()
    assert sorted((one.recipient, one.size) for one in got) == [("", 1), ("", 2)]


def test_the_command_takes_the_types_of_the_app(
    app: Holdfast, kit: Kit, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str | None] = []
    joined_class = joined(erase=["email"])
    app.publish(joined_class(1, "a@b.example", "Ann", "gold"))
    monkeypatch.setattr("holdfast.shapes.events.cli.load_app", loaded.append)
    monkeypatch.setenv("HOLDFAST_APP", "shop:app")
    cli = Cli(dsn, monkeypatch)
    assert cli.text("events", "erase", "1", "--yes") == "The data of 1 event is erased.\n"
    assert data(kit)[0] == {"customer": 1, "email": "", "name": "Ann", "plan": "gold", "address": None}
    assert cli.text("events", "erase", "1", "--yes") == "There is no data to erase.\n"
    assert cli.text("events", "erase", "1", "--whole", "--yes") == "The data of 1 event is erased.\n"
    assert data(kit) == [None]
    assert loaded == [None, None], "not for --whole"


class Color(enum.Enum):
    RED = "red"


class Model(BaseModel):
    text: str
    short: Annotated[str, Field(min_length=1)]
    long: str = Field(default="x", max_length=9)
    born: datetime
    maybe: datetime | None
    whom: UUID
    price: Decimal
    color: Color
    tags: list[str]
    more: dict[str, int]
    anything: Any
    flag: bool
    count: int
    positive: Annotated[int, Field(gt=0)]
    rate: float
    homes: list[Address]
    home: Address


class Struct(msgspec.Struct, rename="camel"):
    full_name: str
    nick_name: Annotated[str, msgspec.Meta(min_length=1)]


class Typed(TypedDict, total=False):
    name: str
    home: Address


BLANK: list[tuple[type, str, tuple[str, ...], Any]] = [
    (Model, "text", ("text",), ""),
    (Model, "long", ("long",), ""),
    (Model, "maybe", ("maybe",), None),
    (Model, "tags", ("tags",), []),
    (Model, "more", ("more",), {}),
    (Model, "anything", ("anything",), None),
    (Model, "flag", ("flag",), False),
    (Model, "count", ("count",), 0),
    (Model, "rate", ("rate",), 0),
    (Model, "homes", ("homes",), []),
    (Model, "home.town", ("home", "town"), ""),
    (Struct, "full_name", ("fullName",), ""),
    (Typed, "name", ("name",), ""),
    (Typed, "home.street", ("home", "street"), ""),
]


@pytest.mark.parametrize(("cls", "name", "path", "blank"), BLANK, ids=str)
def test_a_blank_is_one_that_the_field_takes(cls: type, name: str, path: tuple[str, ...], blank: Any) -> None:
    kind = type_of(
        event("blank.tested", erase=[name])(type(cls.__name__, (cls,), {}) if cls is Model else cls)
    )
    assert kind is not None
    assert kind.blanks == ((path, blank),)
    assert type(kind.blanks[0][1]) is type(blank)


NO_BLANK = "takes no blank: null, an empty text, 0, false, an empty list or object. Declare it as"
REFUSED: list[tuple[type, Any, str]] = [
    (Model, ["txt"], "erase names 'txt', and Model has no field 'txt'. It has text, short, long, born,"),
    (Model, ["home.city"], "'home.city', and Address has no field 'city'. It has street, town"),
    (Model, ["homes.street"], "Address], which has no field 'street'. Erase 'homes' as a whole"),
    (Model, ["text.length"], "and text is str, which has no field 'length'. Erase 'text' as a whole"),
    (Model, ["short"], f"erase names 'short', and str {NO_BLANK} str | None"),
    (Model, ["born"], f"and datetime {NO_BLANK} datetime | None"),
    (Model, ["whom"], f"and UUID {NO_BLANK} UUID | None"),
    (Model, ["price"], f"and Decimal {NO_BLANK} Decimal | None"),
    (Model, ["color"], f"and Color {NO_BLANK} Color | None"),
    (Model, ["positive"], f"and int {NO_BLANK} int | None"),
    (Model, ["home"], f"and Address {NO_BLANK} Address | None"),
    (Struct, ["nick_name"], f"and str {NO_BLANK} str | None"),
    (Model, "text", "erase must be a list of fields such as [\"email\"], not str 'text'"),
    (Model, [7], 'erase names fields such as "email" or "address.street", not int 7'),
    (Model, ["home."], 'erase names fields such as "email" or "address.street", not str \'home.\''),
]


@pytest.mark.parametrize(("cls", "names", "text"), REFUSED, ids=lambda one: str(one)[:30])
def test_what_cannot_be_blanked_is_refused_where_it_is_declared(cls: type, names: Any, text: str) -> None:
    with pytest.raises(TaskDefinitionError) as refused:
        event("blank.tested", erase=names)(cls)
    assert text in str(refused.value)


def test_a_field_of_the_key_is_refused() -> None:
    with pytest.raises(
        TaskDefinitionError, match=r"erase names 'customer', which is part of its key\. A key stays"
    ):
        joined(erase=["customer"])


def test_a_type_that_comes_later_is_looked_at_when_it_is_used() -> None:
    @event("late.told", erase=["who", "home.street"])
    @dataclass
    class Told:
        who: "Later"  # type: ignore[name-defined]  # noqa: F821
        home: Address

    kind = type_of(Told)
    assert kind is not None
    with pytest.raises(NameError):
        _ = kind.blanks
    globals()["Later"] = str | None
    try:
        assert kind.blanks == ((("who",), None), (("home", "street"), ""))
    finally:
        del globals()["Later"]


def test_two_classes_of_one_version_say_it_together(app: Holdfast, kit: Kit) -> None:
    def declared(*names: str) -> Callable[[type], type]:
        return event("twice.said", erase=names)

    @declared("a")
    @dataclass
    class One:
        a: str
        b: str

    @declared("b")
    @dataclass
    class Other:
        a: str
        b: str

    app.publish("twice.said", {"a": "x", "b": "y", "c": "z"})
    assert verbs(kit).erase([1]) == 1
    assert data(kit) == [{"a": "", "b": "", "c": "z"}]


def test_nothing_but_a_blank_can_be_written_into_the_log(app: Holdfast, kit: Kit) -> None:
    app.publish("order.paid", {"amount": 5})
    (row,) = kit.sql("SELECT id, seq FROM holdfast.events")
    for value in ("7", '"forged"', "true", '{"a": 1}', "[0]"):
        blanks = '{"1 order.paid": [[["amount"], ' + value + "]]}"
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="is no blank"):
            kit.sql(
                "SELECT holdfast.erase_events(%s, %s, %s::jsonb, false)", [[row["id"]], [row["seq"]], blanks]
            )
    assert data(kit) == [{"amount": 5}]
