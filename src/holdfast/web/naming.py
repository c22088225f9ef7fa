"""The names of a page: its path, and for a screen also the nouns on it; and lists that an act adds to."""

import re
from collections.abc import Iterable

from holdfast.pages import Page

_ALSO = {
    "dead": ("dead/groups",),
    "keys/{queue}": ("ring/{queue}",),
    "events": ("subscriptions",),
    "events/subscriptions/{name}": ("subscriptions/{name}",),
    "webhooks": ("endpoints",),
    "jobs/{id}": ("jobs/{id}/explain",),
    "workflows/{run}": ("workflows/{run}/timeline",),
}

_ACTS_ALSO = {"enqueue": "jobs", "workflow signal": "workflows/{run}/signals"}


def address_of(act: str) -> str | None:
    """Where a program may post an act too, besides its own address: to the list that it adds to."""
    return _ACTS_ALSO.get(act)


def names_of(page: Page) -> tuple[str, ...]:
    """Longer ones first: the last part of a path may hold slashes."""
    return (*_ALSO.get(page.path, ()), page.path)


def page_at(pages: Iterable[Page], path: str) -> tuple[Page, dict[str, str]] | None:
    """The page that stands at a path, with the parts of it that the page is about."""
    known = [(name, page) for page in pages for name in names_of(page)]
    for name, page in sorted(known, key=lambda one: "{" in one[0]):
        form = re.sub(r"\\{(\w+)\\}", r"(?P<\1>.+)", re.escape(name))
        if found := re.fullmatch(form, path):
            return page, found.groupdict()
    return None
