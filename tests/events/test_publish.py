"""Publishing from Python: event types, what is refused and in which words, ids, traces, the envelope of CloudEvents."""

import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import msgspec
import psycopg
import pydantic
import pytest
from tests.conftest import QUICK, wait_until
from typing_extensions import TypedDict

from holdfast import Event, Holdfast, InvalidEvent, TaskDefinitionError, event
from holdfast.testing import Kit


@event("order.paid", key="order:{order_id}")
@dataclass
class OrderPaid:
    order_id: int
    cents: int


@event("order.shipped", version=3, key="order:{order_id}")
class OrderShipped(TypedDict):
    order_id: int
    carrier: str


@event("order.priced", key="{shop}/{order_id}")
class OrderPriced(pydantic.BaseModel):
    order_id: UUID
    shop: str = pydantic.Field(alias="shopName", default="main")
    price: Decimal = Decimal("1.50")
    model_config = pydantic.ConfigDict(populate_by_name=True)


@event("order.sent", key="order:{order_id}")
class OrderSent(msgspec.Struct, rename="camel"):
    order_id: int
    at: datetime


@pytest.fixture
def app() -> Holdfast:
    return Holdfast()


@pytest.fixture
def kit(app: Holdfast, holdfast_kit: Callable[..., Kit]) -> Kit:
    return holdfast_kit(app, QUICK)


def log(kit: Kit) -> list[dict[str, Any]]:
    return kit.sql("SELECT type, version, key, data, headers, id FROM holdfast.events ORDER BY seq")


def brief(kit: Kit) -> list[tuple[Any, ...]]:
    return [(row["type"], row["version"], row["key"], row["data"]) for row in log(kit)]


# Event types ------------------------------------------------------------------------------------------------------


def test_every_kind_of_class_is_published_and_read_back(app: Holdfast, kit: Kit) -> None:
    number = UUID(int=7)
    at = datetime(2026, 1, 2, tzinfo=UTC)
    app.publish(OrderPaid(1, 995))
    app.publish(OrderShipped, {"order_id": 1, "carrier": "ü"})
    app.publish(OrderPriced(order_id=number, shopName="north"))
    app.publish(OrderSent(order_id=1, at=at))
    app.publish("order.closed", {"order_id": 1}, key="order:1", version=2)
    app.publish_many([OrderPaid(2, 1), (OrderShipped, {"order_id": 2, "carrier": "x"}), ("free", {})])
    assert brief(kit) == [
        ("order.paid", 1, "order:1", {"order_id": 1, "cents": 995}),
        ("order.shipped", 3, "order:1", {"order_id": 1, "carrier": "ü"}),
        (
            "order.priced",
            1,
            f"north/{number}",
            {"order_id": str(number), "shop": "north", "price": "1.50"},
        ),
        ("order.sent", 1, "order:1", {"orderId": 1, "at": "2026-01-02T00:00:00Z"}),
        ("order.closed", 2, "order:1", {"order_id": 1}),
        ("order.paid", 1, "order:2", {"order_id": 2, "cents": 1}),
        ("order.shipped", 3, "order:2", {"order_id": 2, "carrier": "x"}),
        ("free", 1, None, {}),
    ]


def test_consumers_get_what_was_published_typed(app: Holdfast, kit: Kit) -> None:
    seen: list[object] = []
    for kind in (OrderPaid, OrderShipped, OrderPriced, OrderSent):

        def take(event: Event[Any]) -> None:
            seen.append(event.data)

        take.__annotations__["event"] = Event[kind]  # type: ignore[valid-type]
        app.on(kind, name=f"take_{kind.__name__}")(take)
    kit.run_worker()
    sent = [
        OrderPaid(1, 995),
        OrderPriced(order_id=UUID(int=1)),
        OrderSent(order_id=1, at=datetime(2026, 1, 2, tzinfo=UTC)),
    ]
    for one in sent:
        app.publish(one)
    app.publish(OrderShipped, {"order_id": 1, "carrier": "x"})
    kit.run_worker()
    assert len(seen) == 4
    assert all(one in seen for one in [*sent, {"order_id": 1, "carrier": "x"}])


DECLARATIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "name": (
        lambda: event("order paid"),
        "the event's type must be 1 to 200 letters, digits, '_', '.' or '-', not str 'order paid'",
    ),
    "version": (lambda: event("a", version=0), "event 'a': version must be 1 or more, not int 0"),
    "no class": (lambda: event("a")(7), "@event takes a class, not int 7"),  # type: ignore[arg-type]
    "key": (
        lambda: event("a", key="")(OrderPaid),
        "event 'a': key must be a template such as \"order:{order_id}\", not str ''",
    ),
    "no such field": (
        lambda: event("a", key="o:{order}")(OrderPaid),
        "event 'a': the key 'o:{order}' names 'order', which OrderPaid does not have (it has order_id, cents)",
    ),
    "attribute": (
        lambda: event("a", key="{order_id.__class__}")(OrderPaid),
        "event 'a': the key '{order_id.__class__}' may only have plain fields such as {order_id}",
    ),
    "format": (
        lambda: event("a", key="{order_id:>5}")(OrderPaid),
        "event 'a': the key '{order_id:>5}' may only have plain fields such as {order_id}",
    ),
    "open brace": (
        lambda: event("a", key="{order_id")(OrderPaid),
        "event 'a': the key '{order_id' cannot be read: expected '}' before end of string",
    ),
}


@pytest.mark.parametrize("name", DECLARATIONS)
def test_a_bad_declaration_says_what_is_wrong(name: str) -> None:
    declare, words = DECLARATIONS[name]
    with pytest.raises(TaskDefinitionError) as caught:
        declare()
    assert str(caught.value) == words


# What is refused --------------------------------------------------------------------------------------------------


def nested(levels: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for _ in range(levels):
        made = {"a": made}
    return made


class Keyless(OrderPaid):
    """A subclass of an event is none by itself."""


REFUSED: dict[str, tuple[Callable[[Holdfast], Any], str]] = {
    "type": (
        lambda app: app.publish("order paid", {}),
        "the event's type must be 1 to 200 letters, digits, '_', '.' or '-', not str 'order paid'",
    ),
    "no event": (
        lambda app: app.publish(object()),
        'object is no event. Declare it: @event("order.paid") above the class, or write publish("order.paid", {...})',
    ),
    "subclass": (
        lambda app: app.publish(Keyless(1, 2)),
        'Keyless is no event. Declare it: @event("order.paid") above the class, or write publish("order.paid", {...})',
    ),
    "no data": (lambda app: app.publish("a"), "event 'a' needs its data. Write publish('a', {...})"),
    "no data of a class": (
        lambda app: app.publish(OrderShipped),
        "event 'order.shipped' needs its data. Write publish(OrderShipped, {...})",
    ),
    "twice data": (
        lambda app: app.publish(OrderPaid(1, 2), {}),  # type: ignore[call-overload]
        "event 'order.paid' has its data already. Leave the second argument out",
    ),
    "a list": (
        lambda app: app.publish("a", []),  # type: ignore[call-overload]
        "event 'a': the data of an event is a JSON object, not list []",
    ),
    "version of a class": (
        lambda app: app.publish(OrderShipped, {"order_id": 1, "carrier": "x"}, version=2),
        "event 'order.shipped': its class says the version, 3. Leave version out",
    ),
    "version": (
        lambda app: app.publish("a", {}, version=2**31),
        "event 'a': version must be from 1 to 2,147,483,647, not int 2147483648",
    ),
    "another type": (
        lambda app: app.publish(OrderPaid("1", 2)),  # type: ignore[arg-type]
        "event 'order.paid' must be OrderPaid: order_id must be int, not str '1'",
    ),
    "not JSON": (
        lambda app: app.publish("a", {"x": object}),
        (
            "event 'a': data value x is type <class 'object'>, which is not JSON. Annotate it with its type so "
            "that it can be converted, or pass a JSON value"
        ),
    ),
    "NaN": (
        lambda app: app.publish("a", {"x": float("nan")}),
        "event 'a': data value x is nan, which JSON does not have. Pass None or a string",
    ),
    "minus zero": (
        lambda app: app.publish("a", {"x": -0.0}),
        "event 'a': data value x is -0.0, whose sign PostgreSQL does not keep. Pass 0.0 (x + 0.0), or a string",
    ),
    "NUL": (
        lambda app: app.publish("a", {"x": "a\0b"}),
        (
            "event 'a': data value x contains a NUL character (str 'a\\x00b'), which PostgreSQL cannot store. Remove it, or "
            "send base64"
        ),
    ),
    "NUL in a name": (
        lambda app: app.publish("a", {"a\0b": 1}),
        (
            "event 'a': a key of the data contains a NUL character (str 'a\\x00b'), which PostgreSQL cannot store. "
            "Remove it, or send base64"
        ),
    ),
    "surrogate": (
        lambda app: app.publish("a", {"x": "\ud800"}),
        (
            "event 'a': data value x contains a lone surrogate (str '\\ud800'), which is not valid Unicode text. Decode the "
            "source with errors='replace', or send base64"
        ),
    ),
    "number as a name": (
        lambda app: app.publish("a", {1: 2}),  # type: ignore[dict-item]
        "event 'a': a key of the data is int 1; JSON keys are strings. Use str(1)",
    ),
    "huge number": (
        lambda app: app.publish("a", {"x": 10**1001}),
        "event 'a': data value x is an integer of more than 1,000 digits. Pass it as a string",
    ),
    "deep": (
        lambda app: app.publish("a", nested(501)),
        (
            "event 'a': data value a.a.a.a ... .a.a is nested more than 500 levels deep. Flatten it, or pass it as one "
            "string"
        ),
    ),
    "large": (
        lambda app: app.publish("a", {"x": "x" * 229_376}),
        (
            "event 'a': data is 229,385 bytes of JSON, more than the limit of 229,376 (224 KiB). Store it elsewhere (a "
            "table, a file, object storage) and publish a reference"
        ),
    ),
    "large by its floats": (
        lambda app: app.publish("a", {"x": [1e300] * 900}),
        (
            "event 'a': data is 274,507 bytes of JSON, more than the limit of 229,376 (224 KiB). Store it elsewhere (a "
            "table, a file, object storage) and publish a reference"
        ),
    ),
    "empty key": (
        lambda app: app.publish("a", {}, key=""),
        "event 'a': key must not be empty. Leave it out for none",
    ),
    "key of another type": (
        lambda app: app.publish("a", {}, key=7),  # type: ignore[call-overload]
        "event 'a': key must be a string, not int 7. Use str(...)",
    ),
    "long key": (
        lambda app: app.publish("a", {}, key="ü" * 300),
        (
            "event 'a': key is 600 bytes, more than the limit of 512: "
            "str 'üüüüüüüüüüüüüüüüüüüüüüüüüüü...üüüüüüüüüüüüüüüüüüüüüüüüüüüü'. Use a hash of it"
        ),
    ),
    "NUL in the key": (
        lambda app: app.publish("a", {}, key="a\0"),
        "event 'a': key contains a NUL character or a lone surrogate: str 'a\\x00'. Remove it",
    ),
    "id": (
        lambda app: app.publish("a", {}, id="7"),  # type: ignore[call-overload]
        "event 'a': id must be a UUID, not str '7'",
    ),
    "headers": (
        lambda app: app.publish("a", {}, headers={"n": 1}),  # type: ignore[dict-item]
        "event 'a': headers must map names to strings, not dict {'n': 1}",
    ),
    "large headers": (
        lambda app: app.publish("a", {}, headers={"n": "x" * 8192}),
        "event 'a': headers is 8,201 bytes of JSON, more than the limit of 8,192 (8 KiB). Put it into the data",
    ),
    "source": (
        lambda app: app.publish("a", {}, headers={"source": "my shop"}),
        (
            "event 'a': the header 'source' must be a URI or a part of one, such as \"https://shop.example/orders\" or "
            "\"/orders\", not str 'my shop'"
        ),
    ),
    "one of many": (
        lambda app: app.publish_many([OrderPaid(1, 2), ("a", {"x": float("inf")})]),
        "event 2: event 'a': data value x is inf, which JSON does not have. Pass None or a string",
    ),
    "a tuple of four": (
        lambda app: app.publish_many([("a", {}, "k", {})]),
        "event 1: a tuple is (type, data) or (type, data, key), not tuple ('a', {}, 'k', {})",
    ),
    "no list": (
        lambda app: app.publish_many("order.paid"),
        "events must be a list of instances or of tuples (type, data, key), not str 'order.paid'",
    ),
    "too many": (
        lambda app: app.publish_many(("a", {}) for _ in range(100_001)),
        "more than 100,000 events at once. Publish them in several calls",
    ),
    "stream": (
        lambda app: app.events.append("", [("a", {})]),
        "the stream must not be empty. Leave it out for none",
    ),
    "expected": (
        lambda app: app.events.append("s", [("a", {})], expected_version=-1),
        "expected_version must be 0 or more, not int -1",
    ),
    "nothing to append": (lambda app: app.events.append("s", []), "append needs one event at least"),
    "key of another stream": (
        lambda app: app.events.append("order:2", [OrderPaid(1, 2)]),
        "event 1: its key is 'order:1', and the stream is 'order:2'",
    ),
    "id in a stream": (
        lambda app: app.events.append("s", [app.events.new("a", {}, id=UUID(int=1))]),
        "event 1: append takes no ids; expected_version makes a second try safe. Leave the id out",
    ),
}


def test_what_cannot_be_published_is_refused_in_plain_words(app: Holdfast, kit: Kit) -> None:
    said: dict[str, str] = {}
    for name, (call, _) in REFUSED.items():
        with pytest.raises(InvalidEvent) as caught:
            call(app)
        said[name] = str(caught.value)
    assert said == {name: words for name, (_, words) in REFUSED.items()}
    assert log(kit) == []


def test_a_key_needs_its_fields(app: Holdfast, kit: Kit) -> None:
    @event("a", key="a:{x}")
    @dataclass
    class Maybe:
        x: int | bool | list[int] | None = None

    for value, words in (
        (None, "event 'a': the key 'a:{x}' needs 'x', which has no value. Pass key=..."),
        (
            True,
            "event 'a': the field 'x' of the key is bool True. A key is made of text and numbers: pass key=...",
        ),
        (
            [1],
            "event 'a': the field 'x' of the key is list [1]. A key is made of text and numbers: pass key=...",
        ),
    ):
        with pytest.raises(InvalidEvent, match=re.escape(words)):
            app.publish(Maybe(value))
    app.publish(Maybe(), key="given")
    app.publish(Maybe(0))
    assert [row["key"] for row in log(kit)] == ["given", "a:0"]


def test_what_json_can_hold_comes_back_as_it_was(app: Holdfast, kit: Kit) -> None:
    data = {
        "text": "ü\"\\'{},\n\t\u2028😀",
        "numbers": [0, -1, 10**999, 1.5, 1e15, 1e300, 5e-324],
        "float": 1e22,
        "flags": [True, False, None],
        "deep": nested(400),
        "": "",
    }
    flat = {"text": data["text"], "float": 0.1, "int": 2**70, "yes": True, "none": None, "ü": "x"}
    for one in (data, flat):
        app.publish("a", one)
        app.publish_many([("a", one, "k"), ("a", one)])
    assert [e.data for e in app.events.read()] == [data] * 3 + [flat] * 3


# Many -------------------------------------------------------------------------------------------------------------


def test_ten_thousand_at_once_and_one_at_a_time_in_order(app: Holdfast, kit: Kit) -> None:
    made = app.publish_many(("a", {"n": n}, f"k{n % 7}") for n in range(10_000))
    assert len({p.id for p in made}) == 10_000
    assert [p.seq for p in made] == sorted(p.seq for p in made)
    assert all(p.created and p.id.version == 7 for p in made)
    with kit.connect() as conn:
        one_by_one = [app.publish("a", {"n": n}, key=f"k{n % 7}", conn=conn) for n in range(10_000, 20_000)]
        conn.commit()
    rows = kit.sql("SELECT (data->>'n')::int AS n, key, id FROM holdfast.events ORDER BY seq")
    assert [(r["n"], r["key"]) for r in rows] == [(n, f"k{n % 7}") for n in range(20_000)]
    assert [r["id"] for r in rows] == [p.id for p in (*made, *one_by_one)]


def test_no_events_are_none(app: Holdfast, kit: Kit) -> None:
    assert app.publish_many([]) == []
    assert kit.sql("SELECT count(*) AS n FROM holdfast.publish_many('{}', '{}')") == [{"n": 0}]


# Ids --------------------------------------------------------------------------------------------------------------


def test_an_id_is_published_once(app: Holdfast, kit: Kit) -> None:
    number = uuid4()
    first = app.publish("a", {"n": 1}, id=number)
    again = app.publish("a", {"n": 2}, id=number)
    assert (first.id, first.created) == (number, True)
    assert again == first._replace(created=False)
    many = app.publish_many(
        app.events.new("a", {"n": 3}, id=i, key="k") for i in (number, UUID(int=5), number)
    )
    assert [(p.id, p.created) for p in many] == [(number, False), (UUID(int=5), True), (number, False)]
    assert [p.seq for p in many[::2]] == [first.seq, first.seq]
    assert [row["data"]["n"] for row in log(kit)] == [1, 3]


def test_two_of_one_id_in_one_call_are_one_event(app: Holdfast, kit: Kit) -> None:
    app.events.append("k", [("a", {})])
    number = uuid4()
    new = app.events.new
    made = app.publish_many(
        [
            new("a", {"n": 1}, id=number, key="k"),
            new("a", {"n": 2}, key="k"),
            new("a", {"n": 3}, id=number, key="k"),
        ]
    )
    assert [p.created for p in made] == [True, True, False]
    assert (made[0].id, made[0].seq) == (made[2].id, made[2].seq)
    assert [row["data"].get("n") for row in log(kit)] == [None, 1, 2]
    assert app.events.version("k") == 3


def test_an_id_of_a_transaction_that_rolled_back_is_free(app: Holdfast, kit: Kit) -> None:
    number = uuid4()
    with kit.connect() as conn:
        assert app.publish("a", {"n": 1}, id=number, conn=conn).created
        conn.rollback()
    assert app.publish("a", {"n": 2}, id=number).created
    assert [row["data"]["n"] for row in log(kit)] == [2]


@pytest.mark.parametrize("first_commits", [True, False])
def test_the_second_of_an_id_waits_for_the_first(app: Holdfast, kit: Kit, first_commits: bool) -> None:
    number = uuid4()
    done: list[Any] = []
    with kit.connect() as conn:
        app.publish("a", {"n": 1}, id=number, conn=conn)
        second = threading.Thread(target=lambda: done.append(app.publish("a", {"n": 2}, id=number)))
        second.start()
        wait_until(
            lambda: kit.sql("SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"),
            "it waits",
        )
        assert not done
        if first_commits:
            conn.commit()
        else:
            conn.rollback()
        second.join(60)
    assert [p.created for p in done] == [not first_commits]
    assert [row["data"]["n"] for row in log(kit)] == [1 if first_commits else 2]


# CloudEvents ------------------------------------------------------------------------------------------------------

ATTRIBUTE = re.compile("[a-z0-9]{1,20}")
URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9:/?#\[\]@!$&'()*+,;=._~%-]+")


def envelope(app: Holdfast) -> Mapping[str, Any]:
    return app.events.read()[-1].cloudevent()


def test_the_envelope_carries_the_trace(app: Holdfast, kit: Kit) -> None:
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "x=1"}
    app.publish("order.noted", {}, headers=trace)
    assert {name: envelope(app)[name] for name in trace} == trace


def test_the_envelope_is_that_of_cloudevents(app: Holdfast, kit: Kit) -> None:
    made = app.publish("order.paid", {"order_id": 1}, key="order:1", version=2)
    found = envelope(app)
    at = found["time"]
    assert found == {
        "specversion": "1.0",
        "id": str(made.id),
        "source": "holdfast",
        "type": "order.paid",
        "time": at,
        "datacontenttype": "application/json",
        "dataschema": "urn:holdfast:order.paid:2",
        "subject": "order:1",
        "data": {"order_id": 1},
    }
    assert URI.fullmatch(found["dataschema"])
    assert datetime.fromisoformat(at).tzinfo is not None
    assert at.endswith("Z")
    json.dumps(found)


def test_headers_are_extensions_where_their_names_may_be(app: Holdfast, kit: Kit) -> None:
    headers = {
        "source": "https://shop.example/orders?a=%20b",
        "tenant": "ü 1",
        "x-request-id": "7",  # not in the rules of CloudEvents
        "Upper": "x",
        "a" * 21: "x",
        "type": "not.this",
        "data": "nor this",
        "bad": "a\nb",
    }
    app.publish("order.noted", {}, headers=headers)
    found = envelope(app)
    assert app.events.read()[0].headers == headers
    assert app.events.read()[0].source == headers["source"]
    assert (found["source"], found["tenant"], found["type"]) == (headers["source"], "ü 1", "order.noted")
    assert set(found) == {
        *("specversion", "id", "source", "type", "time", "datacontenttype", "dataschema", "data", "tenant")
    }
    assert all(ATTRIBUTE.fullmatch(name) for name in found)


def test_the_source_is_checked_in_sql_too(kit: Kit) -> None:
    good = ("/orders", "urn:shop", "//shop/%C3%BC", "a")
    bad = ("my shop", "", "a%zz", "ü", "a\\b", "<a>")
    for source in good:
        kit.sql("SELECT holdfast.publish('a', headers => jsonb_build_object('source', %s::text))", [source])
    for source in bad:
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="the header source must be a URI"):
            kit.sql(
                "SELECT holdfast.publish('a', headers => jsonb_build_object('source', %s::text))", [source]
            )
    assert len(log(kit)) == len(good)


# Traces -----------------------------------------------------------------------------------------------------------


def test_an_event_and_the_jobs_of_its_consumers_carry_the_trace(
    app: Holdfast, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)

    @app.on("order.*", name="consume")
    def consume(event: Event[Any]) -> None: ...

    kit.run_worker()
    with provider.get_tracer("test").start_as_current_span("request") as request:
        app.publish("order.noted", {})
        app.publish_many([("order.noted", {}), ("order.closed", {})])
        app.publish("order.noted", {}, headers={"traceparent": "mine"})
        app.publish("order.noted", {}, headers={"filler": "x" * 8150})  # no room
    spans = {span.name: span for span in memory.get_finished_spans() if span.name.startswith("publish")}
    assert set(spans) == {"publish order.noted", "publish"}
    assert spans["publish"].attributes is not None
    assert spans["publish"].attributes["messaging.batch.message_count"] == 2
    headers = [row["headers"] for row in log(kit)]
    trace_id = format(request.get_span_context().trace_id, "032x")
    assert [h["traceparent"].split("-")[1] for h in headers[:3]] == [trace_id] * 3
    assert headers[3:] == [{"traceparent": "mine"}, {"filler": "x" * 8150}]
    assert spans["publish"].context is not None
    assert headers[1]["traceparent"].split("-")[2] == format(spans["publish"].context.span_id, "016x")
    kit.run_worker()
    (found,) = kit.sql(
        "SELECT array_agg(metadata ORDER BY seq) AS all FROM holdfast.jobs WHERE task = 'consume'"
    )
    assert [m and m.get("traceparent") for m in found["all"]] == [
        *(h["traceparent"] for h in headers[:3]),
        "mine",
        None,
    ]
    runs = [s for s in memory.get_finished_spans() if s.kind is trace.SpanKind.CONSUMER]
    assert trace_id in {format(s.context.trace_id, "032x") for s in runs if s.context is not None}


def test_published_without_tracing_has_no_headers(app: Holdfast, kit: Kit) -> None:
    app.publish("a", {}, headers={})
    assert log(kit)[0]["headers"] is None
