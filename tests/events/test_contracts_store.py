"""Contracts in the database and in contracts.json, and what `holdfast contracts` prints."""

import contextlib
import io
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel, Field
from tests.conftest import QUICK, wait_until

from holdfast import ConfigurationError, ContractChanged, Event, Holdfast, TaskDefinitionError, event, upcast
from holdfast.cli import main
from holdfast.shapes.events import contract
from holdfast.shapes.events.contracts import algebra, catalog
from holdfast.shapes.events.contracts.catalog import file_text, read_file
from holdfast.testing import Kit

app = Holdfast("postgresql://unused.invalid/none")


@pytest.fixture
def kit(holdfast_kit: Callable[..., Kit], monkeypatch: pytest.MonkeyPatch) -> Kit:
    monkeypatch.setattr(contract, "DECLARED", {})
    monkeypatch.setenv("HOLDFAST_APP", f"{__name__}:app")
    return holdfast_kit(app, QUICK)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No database; a folder of its own."""
    monkeypatch.setattr(contract, "DECLARED", {})
    monkeypatch.setenv("HOLDFAST_APP", f"{__name__}:app")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def holdfast(*words: str) -> tuple[int, str]:
    """Exit code, and all that was printed."""
    out = io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "argv", ["holdfast", *words])
        try:
            main()
            code = 0
        except SystemExit as done:
            code = done.code if isinstance(done.code, int) else int(done.code is not None)
    return code, out.getvalue()


def declare(version: int, cls: Any, **options: Any) -> Any:
    return event("order.paid", version=version, **options)(cls)


def first() -> Any:
    class OrderPaid(BaseModel):
        order_id: int
        cents: int

    return declare(1, OrderPaid, key="order:{order_id}")


def second(**options: Any) -> Any:
    class OrderPaid2(BaseModel):
        order_id: int
        cents: int
        currency: str

    return declare(2, OrderPaid2, **options)


def other_first() -> Any:
    class OrderPaid(BaseModel):
        order_id: int
        cents: int = Field(ge=0)

    contract.DECLARED.clear()
    return declare(1, OrderPaid)


def rows(kit: Kit) -> list[dict[str, Any]]:
    return kit.sql("SELECT name, version, compatibility, release FROM holdfast.event_types ORDER BY 1, 2")


# The database -----------------------------------------------------------------------------------------------------------


def test_versions_are_stored_once_and_never_change(kit: Kit) -> None:
    first()
    assert app.contracts.store(release="2026.5") == 1
    second()
    assert app.contracts.store() == 1
    assert app.contracts.store() == 0
    assert [tuple(row.values()) for row in rows(kit)] == [
        ("order.paid", 1, "full", "2026.5"),
        ("order.paid", 2, "full", None),
    ]
    audited = kit.sql("SELECT action, selection, count FROM holdfast.audit ORDER BY id")
    assert [(r["action"], r["selection"]["events"], r["count"]) for r in audited] == [
        ("contracts store", "order.paid 1", 1),
        ("contracts store", "order.paid 2", 1),
    ]
    other_first()
    declare(3, BaseModel)
    with pytest.raises(ContractChanged) as changed:
        app.contracts.store()
    assert str(changed.value) == (
        "event 'order.paid' version 1 is not as the database has it, and a version never changes: events of it may be in "
        "the log. Put the class back as it was, and declare the change as @event('order.paid', version=2)"
    )
    assert len(rows(kit)) == 2  # all or none


def test_another_digest_of_the_same_schema_is_the_same_version(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another release of pydantic may write the same schema in another way."""
    first()
    app.contracts.store()
    kit.sql(
        "UPDATE holdfast.event_types SET digest = sha256('other'),"
        ' reader = jsonb_set(reader, \'{properties,cents}\', \'{"anyOf": [{"type": "integer"}]}\')'
    )
    assert app.contracts.store() == 0
    assert app.contracts.check() == []


def test_defaults_of_any_kind_can_be_stored(kit: Kit) -> None:
    class Odd(BaseModel):
        number: float = float("nan")
        pair: tuple[int, str] = (1, "\u20ac\\'")

    declare(1, Odd)
    assert app.contracts.store() == 1
    assert app.contracts.check() == []


def test_contracts_are_part_of_the_callers_transaction(kit: Kit) -> None:
    first()
    with psycopg.connect(kit.url) as conn:
        assert app.contracts.store(conn=conn) == 1
        assert rows(kit) == []
        conn.rollback()
        assert app.contracts.store(conn=conn) == 1
    assert len(rows(kit)) == 1
    other_first()
    with psycopg.connect(kit.url) as conn:
        with pytest.raises(ContractChanged):
            app.contracts.store(conn=conn)
        assert conn.execute("SELECT 1").fetchone() == (1,)  # it is still usable


def test_two_that_store_at_once_do_not_store_two_schemas_of_one_version(kit: Kit) -> None:
    first()
    failed: list[BaseException] = []

    def store() -> None:
        try:
            app.contracts.store()
        except BaseException as error:
            failed.append(error)

    with psycopg.connect(kit.url) as conn:
        app.contracts.store(conn=conn)
        other_first()
        thread = threading.Thread(target=store)
        thread.start()
        waits = "SELECT 1 FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted"
        wait_until(lambda: kit.sql(waits), "the other one waits")
        conn.commit()
        thread.join()
    assert [type(error) for error in failed] == [ContractChanged]
    assert len(rows(kit)) == 1


async def test_the_async_twins(kit: Kit) -> None:
    first()
    assert await app.contracts.astore() == 1
    second()
    (verdict,) = await app.contracts.acheck()
    assert (verdict.backward, verdict.forward, verdict.compatible) == ("no", "yes", False)
    await kit.database.aclose()


def test_a_check_compares_with_every_version_that_is_stored(kit: Kit) -> None:
    """Also with one whose class is gone, and one that an upcaster reads needs no comparison."""
    old = first()
    app.contracts.store()
    contract.DECLARED.clear()
    new = second(compatibility="backward")
    (verdict,) = app.contracts.check()
    assert (verdict.old, verdict.new, verdict.compatible) == (1, 2, False)
    old = first()

    @upcast(old, new)
    def in_euros(paid: Any) -> Any:
        return new(order_id=paid.order_id, cents=paid.cents, currency="EUR")

    (verdict,) = app.contracts.check()
    assert (verdict.backward, verdict.upcast, verdict.compatible, verdict.changes) == ("yes", True, True, [])


def test_a_version_that_is_not_what_it_was_is_incompatible(kit: Kit) -> None:
    first()
    app.contracts.store()
    other_first()
    (verdict,) = app.contracts.check()
    assert (verdict.old, verdict.new, verdict.compatible) == (1, 1, False)
    said = "declared version 1 code wants it to be at least 0, and stored version 1 events need not."
    assert verdict.changes[1] == f"cents: {said}"


def test_two_classes_of_one_version_must_be_the_same(alone: Path) -> None:
    first()

    class OrderPaidToo(BaseModel):
        order_id: int
        cents: int

    declare(1, OrderPaidToo)
    assert len(catalog.declared()) == 1

    class OrderPaidOther(BaseModel):
        order_id: int

    declare(1, OrderPaidOther)
    with pytest.raises(
        TaskDefinitionError, match=r"'order.paid' version 1 is declared twice, and differently: "
    ):
        catalog.declared()


def test_without_the_library_the_error_says_what_to_install(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    first()
    second()
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'holdfast-pg\[contracts\]'"):
        app.contracts.check()
    assert app.contracts.store() == 2  # needs no comparison
    code, said = holdfast("contracts", "check", "-d", kit.url)
    assert (code, "pip install 'holdfast-pg[contracts]'" in said) == (2, True)


def test_what_the_library_cannot_read_is_unknown() -> None:
    assert algebra.covers({"$ref": "#/nowhere"}, {"type": "object"}) == "unknown"


# The command line -------------------------------------------------------------------------------------------------------


def test_check_fails_on_an_incompatible_change_and_explains_it(kit: Kit) -> None:
    first()
    assert holdfast("contracts", "store", "-d", kit.url, "--release", "1") == (0, "1 version stored\n")
    assert holdfast("contracts", "store", "-d", kit.url) == (0, "The database has them all\n")
    code, said = holdfast("contracts", "check", "-d", kit.url)
    assert (code, said) == (
        0,
        "1 event type, 0 comparisons: all compatible. To write down what is new: holdfast contracts store\n",
    )
    second()
    code, said = holdfast("contracts", "check", "-d", kit.url)
    assert (code, said) == (
        1,
        (
            "order.paid version 1 -> 2: incompatible (backward no, forward yes)\n"
            "  currency: version 2 code requires it, and version 1 events do not have it. Give it a default, or declare "
            "version 1 and @upcast it to version 2.\n\n"
            "1 event type, 1 comparison: 1 incompatible\n"
        ),
    )
    code, said = holdfast("contracts", "check", "-d", kit.url, "--json")
    found = json.loads(said)
    assert (code, found["compatible"], found["verdicts"][0]["backward"]) == (1, False, "no")


def test_a_file_stands_for_the_database(alone: Path) -> None:
    first()
    assert holdfast("contracts", "check", "--against", "contracts.json")[0] == 2
    assert holdfast("contracts", "export") == (0, "1 version added to contracts.json\n")
    assert holdfast("contracts", "export") == (0, "contracts.json has them all\n")
    contract.DECLARED.clear()  # the class of version 1 is gone, and its contract stays
    second()
    code, said = holdfast("contracts", "check", "--against", "contracts.json")
    assert code == 1
    assert "currency: version 2 code requires it" in said
    assert holdfast("contracts", "export") == (0, "1 version added to contracts.json\n")
    assert [(c.name, c.version) for c in read_file("contracts.json")] == [
        ("order.paid", 1),
        ("order.paid", 2),
    ]
    before = Path("contracts.json").read_text(encoding="utf-8")
    assert file_text(read_file("contracts.json")) == before
    other_first()
    code, said = holdfast("contracts", "export")
    assert code != 0
    assert "is not as contracts.json has it, and a version never changes" in said
    assert Path("contracts.json").read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no contracts that can be read (JSONDecodeError"),
        ("[]", "has no contracts that can be read (TypeError"),
        ("{}", "has no contracts that can be read (KeyError: 'holdfast_contracts')"),
        ('{"holdfast_contracts": 9}', "is of format 9, and this release reads 1: upgrade holdfast"),
        ('{"holdfast_contracts": 1, "events": {"a": {"x": {}}}}', "has no contracts that can be read"),
        (
            '{"holdfast_contracts": 1, "events": {"a": {"1": {"reader": 1}}}}',
            "has no contracts that can be read",
        ),
    ],
)
def test_a_bad_file_is_named(alone: Path, text: str, said: str) -> None:
    Path("contracts.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError) as failed:
        app.contracts.check("file")
    assert said in str(failed.value)
    with pytest.raises(ConfigurationError, match="cannot be written"):
        catalog.export(alone / "missing" / "contracts.json")


def test_against_is_one_of_two(alone: Path) -> None:
    with pytest.raises(ConfigurationError, match=r'against must be "database" or "file", not str \'x\''):
        app.contracts.check("x")  # type: ignore[arg-type]


def test_a_page_per_event_is_written(alone: Path) -> None:
    class Line(BaseModel):
        item: str = Field(max_length=20, description="What was | sold")
        count: int = Field(ge=1)

    @event("shop.order-placed", key="order:{order_id}", compatibility="backward")
    class Placed(BaseModel):
        """A customer has ordered.

        Sent once per order.
        """

        order_id: int
        lines: list[Line]
        coupon: str | None = None
        vip: bool = False

    first()
    shop = Holdfast("postgresql://unused.invalid/none")

    @shop.on(Placed)
    async def pack(event: Event[Placed]) -> None: ...

    globals()["shop"] = shop
    assert holdfast("contracts", "docs", "pages", "-a", f"{__name__}:shop") == (
        0,
        "2 pages and README.md written to pages\n",
    )
    index = Path("pages/README.md").read_text(encoding="utf-8")
    assert "| [shop.order-placed](shop.order-placed.md) | 1 | A customer has ordered. |" in index
    page = Path("pages/shop.order-placed.md").read_text(encoding="utf-8")
    for part in (
        "# shop.order-placed\n\nA customer has ordered.\n\nSent once per order.\n",
        "| key | `order:{order_id}`: events of one key are delivered in order |",
        "| subscribers | `pack` (consumer) |",
        "Compatibility `backward`: code of this version reads older events.",
        "| `lines` | list of object | no |  |",
        "| `lines[].item` | text (20 characters or fewer) | no | What was \\| sold |",
        "| `lines[].count` | integer (at least 1) | no |  |",
        "| `coupon` | text or null | yes |  |",
        "| `vip` | true or false | yes |  |",
    ):
        assert part in page, page
    written = json.loads(page.split("```json\n")[1].split("```")[0])
    assert written == {"order_id": 0, "lines": [{"item": "text", "count": 1}], "coupon": "text", "vip": False}
    Path("blocked").write_text("", encoding="utf-8")
    code, said = holdfast("contracts", "docs", "blocked/pages", "-a", f"{__name__}:shop")
    assert (code, "the pages cannot be written to blocked/pages" in said) == (2, True)
