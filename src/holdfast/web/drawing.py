"""Templates: what goes into a page is text, and every control character in it is made visible, wherever it comes from."""

import functools
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from holdfast import pages
from holdfast.model.masking import masked, masked_text
from holdfast.model.text import command
from holdfast.operate import wording
from holdfast.pages import Offer, Role
from holdfast.web import shown
from holdfast.web.charts import bars_chart, counted_chart
from holdfast.web.masking import before_quote, class_of_error, form_of, within_text
from holdfast.web.rings import reach_chart, ring_chart
from holdfast.web.zones import wall

_TEMPLATES = Path(__file__).parent / "templates"
_GLYPHS = {"cancelled": "cancel", "waits": "wait", "late": "warn"}


def _finalize(value: Any) -> Any:
    """Everything that a template writes passes here, so that nothing can be forgotten."""
    if value is None:
        return ""
    return value if isinstance(value, Markup) else shown.visible(value)


def kind_of(value: Any) -> str:
    """Which cell it is, for the template."""
    if value is None or value == "":
        return "nothing"
    if isinstance(value, bool):
        return "str"
    for kind in (datetime, int, float, str):
        if isinstance(value, kind):
            return kind.__name__
    name = type(value).__name__
    return name if hasattr(pages, name) else "str"


def secret_text(
    value: Any, role: Role, width: int = shown.MOST_CHARACTERS, names: Collection[str] = ()
) -> str:
    """A value on one line, as this role may see it. `names` are those that its task masks."""
    value = within_text(value, names) if isinstance(value, str) else value
    seen = form_of(value) if role == "viewer" else masked(value, 8 * width, names)
    return shown.one_line(seen if isinstance(seen, str) else shown.as_json(seen), width)


def secret_pieces(value: Any, role: Role, names: Collection[str] = ()) -> list[shown.Piece]:
    """`names` are those that its task masks."""
    value = within_text(value, names) if isinstance(value, str) else value
    if isinstance(value, str) and "\n" in value:
        return [shown.Piece(error_text(value, role, names))]
    return shown.json_pieces(
        form_of(value) if role == "viewer" else masked(value, shown.MOST_CHARACTERS, names)
    )


def error_text(text: str | None, role: Role, names: Collection[str] = ()) -> str:
    if text is None:
        return ""
    seen = class_of_error(text) if role == "viewer" else masked_text(text, shown.MOST_CHARACTERS, names)
    return shown.cut(seen or "")


def problem_text(found: pages.Problem, role: Role, names: Collection[str] = ()) -> str:
    return error_text("words of people" if found.words and role == "viewer" else found.text, role, names)


def quoting(sentence: str, role: Role, names: Collection[str] = ()) -> str:
    """A sentence of Holdfast's that may quote an error behind a colon: a viewer gets the part before it."""
    return shown.cut(
        before_quote(sentence) if role == "viewer" else masked_text(sentence, shown.MOST_CHARACTERS, names)
    )


def said_text(said: str | pages.Problem, role: Role, names: Collection[str] = ()) -> str:
    """A note or an alert: our sentence, or what went wrong."""
    if isinstance(said, pages.Problem):
        return error_text(said.text, role, names)
    return quoting(said, role, names)


def plain_text(value: object) -> str:
    """Text for all roles, except for the secrets in it."""
    return shown.cut(masked_text(str(value), shown.MOST_CHARACTERS))


def is_masked(value: object) -> bool:
    """Whether something in it is not shown. Then no address has it either: browsers and logs keep those."""
    return masked_text(str(value)) != str(value)


def trace(text: str, role: Role, names: Collection[str] = ()) -> list[shown.Piece]:
    return [] if role == "viewer" else shown.trace_pieces(masked_text(text, shown.MOST_CHARACTERS, names))


def slug(act: str) -> str:
    return act.replace(" ", "-")


def address(path: str, query: Mapping[str, object] | None = None) -> str:
    """The part behind the prefix. Names may hold anything, so they are quoted."""
    tail = f"?{urlencode({k: str(v) for k, v in query.items()})}" if query else ""
    return "/" + quote(path, safe="/:@~!$&'()*+,;=-._") + tail


def offer_address(offer: Offer, back: str) -> str:
    """Where what it would do is shown; `back` is the page that it leads back to."""
    return address(f"acts/{slug(offer.act)}", {**offer.given, "back": back})


@functools.cache
def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        number=shown.number,
        span=shown.span,
        clock=shown.clock,
        exact=shown.exact_time,
        wall=wall,
        size=wording.size,
        one_line=shown.one_line,
        glyph=lambda state: _GLYPHS.get(state.word, state.tone or "due"),
    )
    made.globals.update(
        kind_of=kind_of,
        secret_text=secret_text,
        secret_pieces=secret_pieces,
        error_text=error_text,
        problem_text=problem_text,
        quoting=quoting,
        said_text=said_text,
        plain_text=plain_text,
        is_masked=is_masked,
        trace_pieces=trace,
        bars_chart=bars_chart,
        counted_chart=counted_chart,
        reach_chart=reach_chart,
        ring_chart=ring_chart,
        address=address,
        offer_address=offer_address,
        slug=slug,
        new_offer=Offer,
        command_line=lambda words: command("holdfast", *words),
    )
    return made


def add_templates(folder: Path) -> None:
    """Templates of another surface, which are drawn as ours are."""
    loader = environment().loader
    assert isinstance(loader, FileSystemLoader)
    if str(folder) not in loader.searchpath:
        loader.searchpath.append(str(folder))


def draw(template: str, context: Mapping[str, Any]) -> str:
    return environment().get_template(template).render(context)
