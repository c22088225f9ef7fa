"""What kinds of failure are there, and which can go back?"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.errors import ConfigurationError
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure
from holdfast.pages import Given, Offer, Page, PageRequest, View
from holdfast.store.dead import Facet
from holdfast.web.filters import DEAD_FIELDS, dead_filter, options, text
from holdfast.web.views.drawn import Drawn, filters_for

if TYPE_CHECKING:
    from holdfast.web.site import Site

FILTERS = (
    ("queue", "Queue", ""),
    ("task", "Task", ""),
    ("error", "Text in the last error", ""),
    ("key", "Key", ""),
    ("tag", "Tag", ""),
    ("newer_than", "Died within", "15m, 2h, 3d"),
    ("older_than", "Died longer ago", "15m, 2h, 3d"),
)
SELDOM = ("key", "tag", "older_than")
LINES = 20
FIRST = 5  # that are tried before the rest


def page(site: "Site") -> Page:
    def load(asked: PageRequest) -> Procedure[View]:
        given = {name: said for name in DEAD_FIELDS if (said := text(asked.query, name)) is not None}
        others = {name: said for name, said in given.items() if name != "group"}
        groups = yield from Operator.group_dead.procedure(dead_filter(others, site.masked_of))
        group = given.get("group")
        each = _each(asked.query)
        after = text(asked.query, "after")
        letters = None
        if group is not None or each:
            letters = yield from Operator.list_dead.procedure(
                dead_filter(given, site.masked_of), after=after, limit=LINES
            )
        chosen = next((one for one in groups.groups if one.id == group), None)
        facets = []
        if chosen is not None:
            facets = yield from Operator.dead_facets.procedure(chosen.id, chosen.task)
        acted = given or {"all": "1"}
        context = {
            "groups": groups,
            "chosen": chosen,
            "facets": _by_kind(facets),
            "first": [str(one.id) for one in (letters.dead_letters if letters else [])[:FIRST]],
            "group": group,
            "each": each,
            "letters": letters,
            **filters_for(asked, FILTERS, SELDOM, ("error",)),
            "given": others,
            "total": sum(one.count for one in groups.groups),
            "after": after,
        }
        more = None
        if letters is not None and letters.next is not None:
            more = {**given, "after": letters.next, **({"each": "1"} if each else {})}
        words = ("dead", "list", *options(given, DEAD_FIELDS), *(("--each",) if each else ()))
        verbs = ("dead redrive", "dead patch", "dead discard") if groups.groups else ()
        offers = [Offer(verb, acted) for verb in verbs]
        return Drawn(
            (),
            {"groups": groups, "dead_letters": letters, "facets": facets},
            words,
            offers=offers,
            more=more,
            template="dead.html",
            context=context,
        )

    takes = (*DEAD_FIELDS, "each", "after")
    return Page("dead", "Dead letters", load, "Work", "dead", searches=("error",), takes=takes)


def _by_kind(facets: Sequence[Facet]) -> list[tuple[str, list[Facet], int]]:
    """Each kind of which there is more than one, with how many have a value that is not named."""
    found = []
    for kind in ("tag", "key", "queue"):
        of = [one for one in facets if one.kind == kind]
        if of and of[0].different > 1:
            others = max(of[0].whole - sum(one.count for one in of), 0) if kind != "tag" else 0
            found.append((kind, of, others))
    return found


def _each(query: Given) -> bool:
    said = query.get("each", "")
    if said not in ("", "1"):
        raise ConfigurationError(f"each takes 1, not {said[:40]!r}. Leave it out for groups")
    return bool(said)
