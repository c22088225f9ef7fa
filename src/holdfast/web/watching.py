"""Pages of tables while somebody looks at them: numbers change in place, and lines that are other ones now are counted."""

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from holdfast.errors import ConfigurationError, DatabaseError, HoldfastError
from holdfast.operate.search import check_texts
from holdfast.pages import Page, PageRequest
from holdfast.web.baselines import Since
from holdfast.web.calls import Call, check_searches
from holdfast.web.snapshots import SHARE
from holdfast.web.swapping import Look, changes, look_at
from holdfast.web.zones import wall

if TYPE_CHECKING:
    from holdfast.web.site import Site

PAGE = "page"  # the topic of a stream
_MOST_CHARACTERS = 2_000  # characters of an address
GONE = "It is not there any more, show"


def check_query(call: Call, page: Page, path: Mapping[str, str], query: Mapping[str, str]) -> PageRequest:
    """What a page is asked for, where its sender may ask that."""
    check_texts({**path, **query})
    check_searches(call, page.searches, query)
    for one in page.filters:
        said = query.get(one.name, "")
        if said and one.choices and said not in one.choices:
            raise ConfigurationError(f"{one.name} must be one of {', '.join(one.choices)}, not {said[:40]!r}")
    return PageRequest(path, query, call.site.app.tasks, call.who.name, call.who.role)


def page_of(call: Call, where: str, filters: str) -> tuple[Page, PageRequest] | None:
    """`where` is the path of a page, such as `workers`, and `filters` what is behind its `?`. None: there is none."""
    if len(where) + len(filters) > _MOST_CHARACTERS:
        raise ConfigurationError(f"a page has an address of at most {_MOST_CHARACTERS:,} characters here")
    found = call.site.page_at(where.strip("/"))
    if found is None:
        return None
    page, path = found
    try:
        pairs = parse_qsl(filters, keep_blank_values=True, max_num_fields=50)
    except ValueError:
        raise ConfigurationError("a page has at most 50 filters here") from None
    return page, check_query(call, page, path, call.known_names(pairs, page.names(), where))


def watched_page(call: Call, where: str, filters: str, mark: str = "") -> "PageWatch":
    """`mark` is that of its lines."""
    found = page_of(call, where, filters)
    if found is None or not found[0].live:
        raise ConfigurationError(f"there is no page {where[:80]!r} that changes while somebody looks at it")
    return PageWatch(*found, mark)


class PageWatch:
    """The last state of one page, for a reader of it. All readers of the same page share one read."""

    def __init__(self, page: Page, asked: PageRequest, mark: str = "") -> None:
        self._page = page
        self._asked = asked
        words = urlencode(sorted({**asked.path, **asked.query}.items()))
        self._topic = f"page:{asked.role}:{page.path}?{words}"
        self._since = Since(mark)

    async def values(self, site: "Site") -> dict[str, str]:
        try:
            now = await site.snapshots.get(
                self._topic, self._page.live, lambda: self._look(site), share=SHARE
            )
        except HoldfastError as error:
            if isinstance(error, DatabaseError):
                raise
            return {"page.changed": GONE}  # it was there when its page was
        said = site.baselines.said(self._since, now.lines, changes, site.now())
        return {**now.values, "page.changed": said, "clock": wall(site.now())}

    async def _look(self, site: "Site") -> Look:
        return look_at(await site.look(self._page.load(self._asked)), site.names)
