"""Saved views: a page of the dashboard and its filter under a name, private or shared."""

from collections.abc import Mapping
from uuid import UUID

from ..errors import ConfigurationError
from ..store import views as store
from ..store.audit import audit
from ..store.statement import Flow
from ..store.views import SavedView
from .procedure import Procedure, actor, run
from .refusal import Refused
from .search import check_texts

MOST_VIEWS = 200  # that one person has, and that everybody shares
_NAME = 60  # characters


def list_views(who: str) -> Procedure[list[SavedView]]:
    """A person's own, then the shared ones."""
    return (yield from run(lambda: store.list_views(who, 2 * MOST_VIEWS)))


def save_view(name: str, page: str, query: Mapping[str, str], *, shared: bool = False) -> Procedure[UUID]:
    """Saved under this name, replacing an earlier one."""
    name = name.strip()
    check_texts({"name": name, "page": page, **{f"{key}=": value for key, value in query.items()}})
    if not 1 <= len(name) <= _NAME:
        raise ConfigurationError(f"the name of a view has 1 to {_NAME} characters, not {len(name)}")
    who = yield from actor()
    owner = None if shared else who.name

    def save() -> Flow[UUID]:
        made = yield from store.save_view(owner, name, page, query, who.name, MOST_VIEWS)
        if not made:
            whose = "everybody's" if shared else "yours"
            raise ConfigurationError(f"{MOST_VIEWS} views are {whose} already. Delete one first")
        what = {"id": str(made[0]), "name": name, "page": page, "shared": shared}
        yield from audit(who, "view save", what, 1, None, {"query": dict(query)})
        return made[0]

    return (yield from run(save))


def delete_view(view: UUID, *, shared: bool = False) -> Procedure[SavedView]:
    """A person's own, or with `shared` a shared one. Nobody deletes another person's."""
    who = yield from actor()

    def delete() -> Flow[SavedView]:
        found = yield from store.find_view(view, who.name)
        if found is None:
            raise Refused("no_view", f"there is no view {view} of yours, and no shared one", id=view)
        if (found.owner is None) != shared:
            whose = "everybody's" if found.owner is None else "your own"
            raise Refused("other_view", f"view {found.name!r} is {whose}, and was not to be", id=view)
        yield from store.delete_view(view)
        what = {"id": str(view), "name": found.name, "page": found.page, "shared": shared}
        yield from audit(who, "view delete", what, 1, {"query": found.query}, None)
        return found

    return (yield from run(delete))
