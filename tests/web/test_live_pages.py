"""A page of tables that somebody has open: its numbers change in place, and nothing else does."""

import asyncio
import html
import re
from typing import Any
from urllib.parse import parse_qsl

import pytest
from tests.conftest import QUICK
from tests.web.conftest import HOSTILE, Shop
from tests.web.surfing import Surfer, made_for
from tests.web.troubled import make_trouble, shop_app

from holdfast.operate.job_acts import cancel_verb
from holdfast.operate.operator import Operator
from holdfast.pages import Code, Figures, Link, Row, Span, State, Table, Use, View
from holdfast.testing import Kit
from holdfast.web.application import Dashboard
from holdfast.web.baselines import RESTARTED, Baselines, Since
from holdfast.web.swapping import Names, changes, look_at
from holdfast.web.watching import GONE

NAMED = re.compile(r'data-live="([^"]+)"[^>]*>([^<]*)')


def names(view: View) -> Names:
    return Names(lambda *parts: "".join(f"{ord(letter):02x}" for letter in parts[-1]))


def table(*rows: Row) -> View:
    return View([Table(("Name", "State", "Due#", "For#", "Use"), rows)], None, ())


def row(key: str, due: int, state: str = "alive") -> Row:
    return Row((Link(key, "x"), State(state), due, Span(2.0), Use(due, 10)), key=key)


async def _poll(surfer: Surfer, page: str, query: str = "") -> dict[str, str]:
    answer = await surfer.client.get(
        "/live", params={"poll": "1", "topics": "page", "page": page, "query": query}
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, str] = answer.json()
    return found


def _named(text: str) -> dict[str, str]:
    """What stands in a page under the names that a stream uses."""
    return {html.unescape(name): html.unescape(said) for name, said in NAMED.findall(text)}


def test_numbers_are_swapped_and_what_else_differs_is_counted() -> None:
    before = look_at(table(row("a", 1), row("b", 2)), names(table()))
    assert list(before.values.values()) == ["1", "2.0 s", "1", "6.0", "2", "2.0 s", "2", "12.0"]
    assert changes(before.lines, look_at(table(row("b", 7), row("a", 8)), names(table())).lines) == 0, (
        "numbers and order"
    )
    assert changes(before.lines, look_at(table(row("a", 1, "gone"), row("b", 2)), names(table())).lines) == 1
    assert changes(before.lines, look_at(table(row("c", 1), row("b", 2)), names(table())).lines) == 1, (
        "one for another"
    )
    assert (
        changes(before.lines, look_at(table(row("a", 1), row("b", 2), row("c", 3)), names(table())).lines)
        == 1
    )
    assert changes(before.lines, look_at(table(), names(table())).lines) == 2


def _asked_by(text: str) -> dict[str, str]:
    """What a page sends to its stream."""
    (said,) = re.findall(r'data-live-query="([^"]+)"', text)
    return dict(parse_qsl(html.unescape(said), keep_blank_values=True))


async def _changed(surfer: Surfer, topic: str, asked: dict[str, str]) -> str:
    answer = await surfer.client.get("/live", params={"poll": "1", "topics": topic, **asked})
    assert answer.status_code == 200, answer.text
    return str(answer.json()[f"{topic}.changed"])


@pytest.mark.parametrize("topic", ["page", "jobs"])
async def test_a_stream_that_begins_again_counts_from_when_the_page_was_sent(
    mara: Surfer, dashboard: Dashboard, kit: Kit, topic: str
) -> None:
    """A hidden tab closes its stream, a proxy cuts it, and after ten minutes it ends by itself."""
    asked = _asked_by(await mara.page("/queues" if topic == "page" else "/jobs?queue=mail"))
    assert await _changed(mara, topic, asked) == ""
    await asyncio.to_thread(Operator(kit.database, "t").create_queue, "letters")
    await asyncio.to_thread(kit.app.send, "send", {"order_id": 1}, queue="mail")
    for _ in range(2):
        dashboard.site.snapshots.forget()
        assert re.fullmatch(r"1 changed since \d\d:\d\d:\d\d, show", await _changed(mara, topic, asked))


async def test_a_page_of_a_dashboard_before_its_restart_says_so(kit: Kit) -> None:
    """Its numbers have other names now: they would stand still, and look live."""
    before, after = made_for(kit.app), made_for(kit.app)
    asked = _asked_by(await Surfer(before).page("/queues"))
    assert await _changed(Surfer(after), "page", asked) == RESTARTED
    for made in (before, after):
        await made.close()
    await kit.database.aclose()


async def test_another_process_of_the_same_dashboard_knows_whether_a_page_is_old(kit: Kit) -> None:
    one, other = (made_for(kit.app, secret="of-both-processes") for _ in range(2))
    asked = _asked_by(await Surfer(one).page("/queues"))
    assert await _changed(Surfer(other), "page", asked) == ""
    await asyncio.to_thread(Operator(kit.database, "t").create_queue, "letters")
    other.site.snapshots.forget()
    assert re.fullmatch(r"Changed since \d\d:\d\d:\d\d, show", await _changed(Surfer(other), "page", asked))
    for made in (one, other):
        await made.close()
    await kit.database.aclose()


async def test_the_overview_says_that_what_needs_attention_has_changed(
    mara: Surfer, dashboard: Dashboard, kit: Kit
) -> None:
    asked = _asked_by(await mara.page("/"))

    async def changed() -> str:
        answer = await mara.client.get("/live", params={"poll": "1", "topics": "overview", **asked})
        return str(answer.json()["findings.changed"])

    assert await changed() == ""
    await asyncio.to_thread(kit.app.send, "send", {"order_id": 1}, queue="mail")
    await asyncio.to_thread(kit.sql, "UPDATE holdfast.work SET available_at = now() - interval '2 hours'")
    assert await changed() == "", "the doctor looks once a minute"
    dashboard.site.snapshots.forget()
    await dashboard.site.diagnosis()
    assert re.fullmatch(r"[1-9] changed since \d\d:\d\d:\d\d, show", await changed())


async def test_the_page_of_a_job_says_that_it_has_changed(
    mara: Surfer, dashboard: Dashboard, kit: Kit, shop: Shop
) -> None:
    asked = _asked_by(await mara.page(f"/jobs/{shop.waiting}"))

    async def changed() -> str:
        answer = await mara.client.get(
            "/live", params={"poll": "1", "topics": f"job:{shop.waiting}", **asked}
        )
        return str(answer.json()["job.changed"])

    assert await changed() == ""
    await asyncio.to_thread(Operator(kit.database, "t").act_on, cancel_verb(), [shop.waiting])
    dashboard.site.snapshots.forget()
    assert re.fullmatch(r"Changed since \d\d:\d\d:\d\d, show", await changed())


@pytest.mark.parametrize("mark", ["x", "0123abcd", f"{'a' * 8}.{'b' * 16}.{'9' * 12}", "a.b.c"])
async def test_a_mark_that_no_page_has_is_refused(mara: Surfer, mark: str) -> None:
    answer = await mara.client.get("/live", params={"poll": "1", "topics": "jobs", "was": mark})
    assert (answer.status_code, "is not what a page has sent" in answer.text) == (400, True)


def test_old_lists_are_forgotten_and_no_word_of_them_is_in_a_mark(dashboard: Dashboard) -> None:
    site = dashboard.site
    kept, now = Baselines(site.csrf.sign), site.now()
    first = kept.keep({"a": ["password=hunter2"]}, now)
    assert "hunter2" not in first
    since = Since(first)
    assert kept.said(since, {"b": []}, changes, now).startswith("1 changed since")
    for n in range(400):
        kept.keep({str(n): []}, now)
    assert len(kept._kept) <= 300
    assert kept.said(Since(first), {"b": []}, changes, now).startswith("Changed since")
    assert kept.said(Since(first), {"a": ["password=hunter2"]}, changes, now) == ""
    assert kept.said(since, {"b": []}, changes, now).startswith("1 changed since")


def test_a_row_without_a_name_and_what_is_no_number_stay_as_they_were() -> None:
    view = View(
        [Table(("Text", "Code"), [Row((17, Code("17"))), Row(("17", Code("17")), key="a")])], None, ()
    )
    assert not look_at(view, names(view)).values
    assert look_at(View([Figures([("Due", Link("1,204+", "jobs"))])], None, ()), names(view)).values == {
        f"b0.{b'Due'.hex()}.0": "1,204+"
    }


PAGES = (
    "queues", "queues/mail", "keys", "keys/parcels", "workers", "limits", "schedules", "events", "projections", "workflows",
    "events/subscriptions/shop.book",
)  # fmt: skip


async def test_every_page_that_is_live_has_what_its_stream_names(holdfast_kit: Any) -> None:
    kit: Kit = holdfast_kit(shop_app(), QUICK)
    await asyncio.to_thread(make_trouble, kit)
    made = made_for(kit.app)
    surfer = Surfer(made)
    live = [path for path, page in made.site.pages.items() if page.live]
    assert {path.partition("/")[0] for path in PAGES} <= {path.partition("/")[0] for path in live}
    for path in PAGES:
        shown = _named(await surfer.page(f"/{path}"))
        sent = await _poll(surfer, path)
        numbers = {name: said for name, said in sent.items() if name.startswith(("a", "b"))}
        if path not in (
            "keys/parcels",
            "workers",
            "schedules",
            "workflows",
        ):  # nobody lives, and dates are no numbers
            assert numbers, path
        assert set(numbers) <= set(shown), path
        assert sent["page.changed"] == ""
        assert "page.changed" in shown
    await made.site.close()
    await kit.database.aclose()


async def test_a_number_changes_and_a_line_that_came_is_counted(
    mara: Surfer, dashboard: Dashboard, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.web import live
    from holdfast.web.watching import watched_page

    shown = _named(await mara.page("/queues"))
    watch: Any = None

    def keep(*given: Any) -> Any:
        nonlocal watch
        watch = watched_page(*given)
        return watch

    monkeypatch.setattr(live, "watched_page", keep)
    first = await _poll(mara, "queues")
    assert {name: shown[name] for name in first if name in shown and name.startswith("b")}
    await asyncio.to_thread(kit.app.send, "send", {"order_id": 1}, queue="mail")
    await asyncio.to_thread(Operator(kit.database, "t").create_queue, "letters")
    dashboard.site.snapshots.forget()
    then = await watch.values(dashboard.site)
    changed = {name for name in first if then.get(name) != first[name]} - {"clock", "page.changed"}
    assert "1" in {then[name] for name in changed}
    assert re.fullmatch(r"1 changed since \d\d:\d\d:\d\d, show", then["page.changed"])


async def test_all_who_look_at_a_page_share_one_look(mara: Surfer, dashboard: Dashboard) -> None:
    await _poll(mara, "workers")
    before = dashboard.site.snapshots.looks
    await asyncio.gather(*(_poll(mara, "workers") for _ in range(20)))
    assert dashboard.site.snapshots.looks - before <= 1


async def test_no_key_is_in_the_name_of_a_part(mara: Surfer, kit: Kit, shop: Shop) -> None:
    """Names of keys may be anybody's words, and secrets."""
    said = f"order:password=hunter2secret {HOSTILE}".replace("\x1b", "").replace("\x00", "")
    await asyncio.to_thread(kit.app.send, "ship", {"number": 8}, partition_key=said, queue="parcels")
    sent = await _poll(mara, "keys/parcels")
    assert len(sent) > 3
    assert "hunter2" not in str(sent)
    assert "hunter2" not in await mara.page("/keys/parcels")


@pytest.mark.parametrize(
    ("page", "query", "said"),
    [
        ("nothing", "", "there is no page"),
        ("settings", "", "there is no page"),
        ("jobs", "", "there is no page"),
        ("workers", "gon=yes", "does not know"),
        ("workers", "gone=maybe", "must be one of"),
        ("workers", "gone=yes&gone=yes", "more than once"),
        ("workers", "gone=" + "y" * 3000, "at most"),
    ],
)
async def test_a_page_that_cannot_be_watched_is_refused(
    mara: Surfer, page: str, query: str, said: str
) -> None:
    for more in ({}, {"poll": "1"}):
        answer = await mara.client.get(
            "/live", params={"topics": "page", "page": page, "query": query, **more}
        )
        assert (answer.status_code in (400, 404), said in html.unescape(answer.text).replace("There", "there")) == (
            True, True
        ), answer.text  # fmt: skip


@pytest.mark.parametrize(
    "asked", ["topics=page", "topics=overview&page=workers", "topics=overview&query=a%3Db"]
)
async def test_a_page_belongs_to_its_topic(mara: Surfer, asked: str) -> None:
    assert (await mara.get(f"/live?poll=1&{asked}")).status_code == 400


async def test_a_page_whose_thing_is_gone_says_so(mara: Surfer, dashboard: Dashboard, kit: Kit) -> None:
    sent = await _poll(mara, "queues/none-of-this-name")
    assert sent == {"page.changed": GONE}
