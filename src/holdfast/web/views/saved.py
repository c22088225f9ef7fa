"""Views that were saved: a page and its filter under a name, and the acts that save and delete them."""

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode
from uuid import UUID

from holdfast.errors import ConfigurationError
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure
from holdfast.pages import Act, ActResult, Field, Given, Link, Offer, Page, PageRequest, Row, Table, View
from holdfast.store.views import SavedView
from holdfast.web.filters import check_no_secret

if TYPE_CHECKING:
    from holdfast.web.site import Site

PLACES = ("after", "before", "peek")  # in an address: where somebody was, not what he looked for
_LONGEST = 2000  # characters of a page's path, and of its filter
_HEADS = ("Name", "Page", "Filter~", "Whose", "Saved by", "When")


def page(site: "Site") -> Page:
    def load(asked: PageRequest) -> Procedure[View]:
        found = yield from Operator.list_views.procedure(asked.who)
        seen = [one for one in found if may_open(site, one, asked.role)]
        empty = "Nothing is saved. A list that you filter has Save view beside its filter."
        table = Table(_HEADS, [_row(one) for one in seen], "Saved views", "", empty)
        return View([table], seen, ())

    return Page("views", "Saved views", load, "System", "eye")


def _row(view: SavedView) -> Row:
    act = "view delete" if view.owner is not None else "view unshare"
    whose = "yours" if view.owner is not None else "everybody's"
    words = ", ".join(f"{name} {value}" for name, value in view.query.items()) or "none"
    cells = (Link(view.name, view.page, view.query), view.page, words, whose, view.made_by, view.made_at)
    return Row(cells, (Offer(act, {"id": str(view.id)}, "Delete…"),), key=str(view.id))


def may_open(site: "Site", view: SavedView, role: str) -> bool:
    """A search may quote text that a viewer may not read."""
    found = site.page_at(view.page)
    return found is not None and (role != "viewer" or not set(view.query) & set(found[0].searches))


# Acts ---------------------------------------------------------------------------------------------------------------


def view_acts(site: "Site") -> tuple[Act, ...]:
    def save(shared: bool) -> Callable[[Given], Procedure[ActResult]]:
        def do(given: Given) -> Procedure[ActResult]:
            path, query = given["page"].strip("/"), _query(site, given)
            made = yield from Operator.save_view.procedure(given["name"], path, query, shared=shared)
            where = f"{path}?{urlencode(query)}" if query else path
            whom = "for everybody" if shared else "for you"
            return ActResult(f"Saved {whom}: {given['name'].strip()}.", {"id": made}, where)

        return do

    def delete(shared: bool) -> Callable[[Given], Procedure[ActResult]]:
        def do(given: Given) -> Procedure[ActResult]:
            gone = yield from Operator.delete_view.procedure(_id(given["id"]), shared=shared)
            return ActResult(f"Deleted: {gone.name}.", {"id": gone.id}, "views")

        return do

    act = functools.partial(Act, command=_no_command, asks_why=False)
    asked = (Field("name", "Name"), Field("page"), Field("query", required=False))
    one = (Field("id"),)
    return (
        act("view save", "Save view", save(shared=False), asked, role="viewer"),
        act("view share", "Save view for everybody", save(shared=True), asked),
        act("view delete", "Delete view", delete(shared=False), one, role="viewer"),
        act("view unshare", "Delete view of everybody", delete(shared=True), one),
    )


def _no_command(_: Given) -> tuple[str, ...]:
    """Views are of the dashboard: the command line has the filters themselves."""
    return ()


def _query(site: "Site", given: Given) -> Mapping[str, str]:
    """The filters that the page accepts, so that a saved view can be opened."""
    path, text = given["page"].strip("/"), given.get("query", "")
    if len(path) > _LONGEST or len(text) > _LONGEST:
        raise ConfigurationError(f"a view has an address of at most {_LONGEST:,} characters")
    at = site.page_at(path)
    if at is None:
        raise ConfigurationError(f"there is no page {path[:80]!r} to save a view of")
    found, _ = at
    try:
        pairs = parse_qsl(text, keep_blank_values=False, max_num_fields=50)
    except ValueError:
        raise ConfigurationError("a view has at most 50 filters") from None
    query = {name: value for name, value in pairs if name not in PLACES}
    for name, value in query.items():
        if name not in found.names():
            raise ConfigurationError(
                f"{path} does not know {name[:40]!r} (known: {', '.join(found.names())})"
            )
        check_no_secret(value, site.masked_of(""), "view")
    return query


def _id(word: str) -> UUID:
    try:
        return UUID(word)
    except ValueError:
        raise ConfigurationError(f"{word[:80]!r} is not the id of a view") from None
