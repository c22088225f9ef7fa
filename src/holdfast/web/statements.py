"""The SQL of a page: the statements that were run for it, so that somebody can run them elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from holdfast.errors import ConfigurationError
from holdfast.model.masking import masked_text
from holdfast.store.statement import Statement
from holdfast.web.calls import Call
from holdfast.web.drawing import address
from holdfast.web.reading import RAN, Ran
from holdfast.web.shown import cut
from holdfast.web.site import Site
from holdfast.web.watching import page_of

_OWN = frozenset({"read_only", "prefer_indexes", "prefer_kept_plans"})  # about the session
_LONG = 200  # characters of a parameter


@dataclass(frozen=True, slots=True)
class Line:
    """A statement as it is shown."""

    name: str
    text: str
    params: Sequence[str]  # empty for a viewer: a search may quote what he does not read


async def show_statements(site: Site, call: Call) -> Response:
    """`GET /sql?page=jobs&query=state%3Ddead`."""
    asked = call.query(("page", "query"))
    where, filters = asked.get("page", "").strip("/"), asked.get("query", "")
    found = page_of(call, where, filters)
    if found is None:
        raise ConfigurationError(f"there is no page {where[:80]!r}")
    page, request = found
    await site.learn_masked()
    ran = Ran()
    told = RAN.set(ran)
    try:
        await site.look(page.load(request))
    finally:
        RAN.reset(told)
    may = call.who.may("operator")
    context = {
        "title": "SQL",
        "page_title": page.title,
        "own": _shown(ran.own, with_params=may),
        "shared": _shown(ran.shared, with_params=may),
        "back": address(where) + (f"?{urlencode(request.query)}" if request.query else ""),
    }
    return call.html("statements.html", context)


def _shown(ran: Sequence[Statement[Any]], *, with_params: bool) -> list[Line]:
    """Each once, in the order in which they were run first."""
    known: dict[tuple[str, str], Line] = {}
    for one in ran:
        params = [_param(value) for value in one.params] if with_params else []
        known.setdefault((one.name, str(params)), Line(one.name, one.text.strip(), params))
    return [one for (name, _), one in known.items() if name not in _OWN]


def _param(value: object) -> str:
    text = "NULL" if value is None else str(value)
    return cut(masked_text(text, _LONG), _LONG)
