"""Several databases behind one dashboard: each under /d/NAME with its own site, and a switcher between them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from starlette.requests import Request

from holdfast.errors import ConfigurationError
from holdfast.web.drawing import address

if TYPE_CHECKING:
    from holdfast.web.identity import Identity
    from holdfast.web.site import Site

DATABASE = "holdfast.database"  # in the scope of a request: which one it is about
_PLACES = "holdfast.places"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_CURSORS = ("after", "before", "group")  # they mean rows of one database


def database_of(request: Request) -> str:
    """The name of the database that a request is about; empty where there is only one."""
    return str(request.scope.get(DATABASE, ""))


def about(request: Request, name: str) -> Request:
    """The same request, as if it were about that database."""
    return Request({**request.scope, DATABASE: name})


def check_names(names: Iterable[str]) -> None:
    found = list(names)
    if not found:
        raise ConfigurationError("a dashboard of several databases needs at least one: {name: app}")
    for name in found:
        if not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"a database cannot be called {name[:60]!r}: 1 to 40 letters, digits, dots, dashes and underscores"
            )
    if len({name.lower() for name in found}) < len(found):
        raise ConfigurationError(f"two databases have one name: {', '.join(sorted(found))}")


@dataclass(frozen=True, slots=True)
class DatabaseLink:
    """A database in the switcher."""

    name: str
    href: str  # behind the prefix of the whole dashboard
    is_here: bool
    trouble: str  # empty: none that is known

    @property
    def standing(self) -> str:
        return "away" if self.trouble else ""


async def find_places(site: "Site", request: Request) -> Sequence[DatabaseLink]:
    """Those that this person may enter. Nobody waits for a database here."""
    found = []
    for other in site.beside:
        if other is not site and await _who(other, request) is None:
            continue
        found.append(
            DatabaseLink(other.name, _same_view(site, other, request), other is site, other.trouble())
        )
    request.scope[_PLACES] = found
    return found


def places_of(request: Request) -> Sequence[DatabaseLink]:
    """What find_places() found for this request."""
    found: Sequence[DatabaseLink] = request.scope.get(_PLACES, ())
    return found


async def _who(site: "Site", request: Request) -> "Identity | None":
    return await site.identity(about(request, site.name))


def top_prefix(site: "Site", request: Request) -> str:
    """Where the whole dashboard is mounted."""
    prefix = str(request.scope.get("root_path", "")).rstrip("/")
    return prefix.removesuffix(f"/d/{site.name}") if site.name else prefix


def sign_in_address(top: str, request: Request) -> str:
    """The page that asks, and from there back to where somebody was."""
    here = request.scope["path"].removeprefix(top).lstrip("/")
    back = f"{here}?{request.url.query}" if request.url.query else here
    return f"{top}/login" + (f"?{urlencode({'back': back})}" if back else "")


def _same_view(site: "Site", other: "Site", request: Request) -> str:
    """The current list, with its filter. A list that one database alone has becomes its list."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", "")).strip("/")
    here = f"{top_prefix(site, request)}/d/{other.name}"
    if path in other.pages:
        kept = {k: v for k, v in request.query_params.items() if k not in _CURSORS}
        return f"{here}{address(path)}" + (f"?{urlencode(kept)}" if kept else "")
    first = path.partition("/")[0]
    return f"{here}{address(first if first in other.pages else '')}"
