"""Where a word leads: an id to its job, else pages, databases, saved views, queues and tasks that have it in their name."""

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.responses import RedirectResponse, Response

from holdfast.operate.operator import Operator
from holdfast.web.calls import Call, Refusal
from holdfast.web.databases import places_of
from holdfast.web.drawing import address
from holdfast.web.plain import as_json
from holdfast.web.views.overview import OLD, numbers_of
from holdfast.web.views.saved import may_open

if TYPE_CHECKING:
    from holdfast.web.site import Site

_ID = re.compile("[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")
MOST_FOUND = 12


async def find(site: "Site", call: Call) -> Response:
    word = call.query(("q",)).get("q", "").strip()[:200]
    if _ID.fullmatch(word):
        found = [{"text": f"Job {word}", "kind": "job", "href": call.prefix + address(f"jobs/{word}")}]
    else:
        found = await _named(site, call, word.lower())
    if call.request.headers.get("x-fragment") == "1":
        names = as_json({"found": found[:MOST_FOUND]}, "operator")  # nothing in it is content or an error
        return Response(names, media_type="application/json")
    if not found:
        raise Refusal(HTTPStatus.NOT_FOUND, f"nothing here is called {word!r}")
    return RedirectResponse(found[0]["href"], HTTPStatus.SEE_OTHER)


async def _named(site: "Site", call: Call, word: str) -> list[dict[str, Any]]:
    found = [
        {"text": page.title, "kind": "page", "href": call.prefix + address(page.path)}
        for page in site.pages.values()
        if page.icon and word in page.title.lower()
    ]
    found += [
        {"text": place.name, "kind": "database", "href": place.href}
        for place in places_of(call.request)
        if not place.is_here and word in place.name.lower()
    ]
    if not word:
        return found
    for view in await site.look(Operator.list_views.procedure(call.who.name)):
        if word in view.name.lower() and may_open(site, view, call.who.role):
            found += _line(call, view.name, "saved view", view.page, **view.query)
    numbers = await numbers_of(site, OLD)
    for load in numbers.found.queues:
        found += _line(call, load.name, "queue", f"queues/{load.name}") if word in load.name.lower() else []
    tasks = await site.snapshots.get("tasks", 10.0, lambda: site.look(Operator.list_tasks.procedure()))
    for task in sorted({task.task for task in tasks} | {name for name, _ in site.app.tasks.known()}):
        found += _line(call, task, "task", "jobs", task=task) if word in task.lower() else []
    return found


def _line(call: Call, text: str, kind: str, path: str, **query: str) -> list[dict[str, Any]]:
    return [{"text": text, "kind": kind, "href": call.prefix + address(path, query)}]
