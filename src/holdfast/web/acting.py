"""An act from its preview to what it did: look, confirm, do. The same function serves forms and programs."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.model.masking import masked_text
from holdfast.operate.search import check_texts
from holdfast.pages import WHY, Act, ActResult, Given, Offer, Preview
from holdfast.web.calls import Call, Refusal, local, sentence_of, set_cookie
from holdfast.web.drawing import address, slug
from holdfast.web.masking import for_role
from holdfast.web.once import once
from holdfast.web.openapi import takes
from holdfast.web.plain import plain, written
from holdfast.web.seals import Shown
from holdfast.web.site import Site

SAID = "holdfast_said"
MANY = 100  # more than that: the number must be typed
_YES_OR_NO = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def _check_names(act: Act, given: Mapping[str, str]) -> None:
    """Unknown fields of an act are refused, and so are names of nothing, so that a slip does not become another act."""
    check_texts(dict(given))
    known = {field.name: field for field in act.fields}
    if unknown := sorted(set(given) - set(known)):
        raise ConfigurationError(
            f"{act.name} does not know {unknown[0]!r} (known: {', '.join(sorted(known))})"
        )
    for name, value in given.items():
        if not known[name].label and not value.strip():
            raise ConfigurationError(f"{name} names nothing. Say which, or leave it out")


def fields_of(act: Act, given: Mapping[str, str]) -> dict[str, str]:
    """The values that the act takes, by their names."""
    _check_names(act, given)
    found = {name: value for name, value in given.items() if value != ""}
    for field in act.fields:
        if field.required and not found.get(field.name, field.value):
            raise ConfigurationError(f"{act.name} needs {field.name}")
        if field.kind == "choice" and found.get(field.name) and found[field.name] not in field.choices:
            said = ", ".join(field.choices)
            raise ConfigurationError(f"{field.name} must be one of {said}, not {found[field.name][:40]!r}")
    return found


async def preview(site: Site, call: Call, act: Act, given: Given) -> Preview | None:
    if act.preview is None:
        return None
    await site.learn_masked()
    return await site.operator(call.actor).arun(act.preview(given))


async def do(site: Site, call: Call, act: Act, given: Given) -> ActResult:
    """The next view shows the result. The reason is in the audit, as on the command line."""
    await site.learn_masked()
    try:
        return await site.operator(call.actor.because(given.get(WHY))).arun(act.do(given))
    finally:
        site.snapshots.forget()


# Forms --------------------------------------------------------------------------------------------------------------


def _chosen(act: Act, given: Given) -> dict[str, str]:
    """The subject of the act, without the fields that the form asks for beside the preview."""
    asked = {field.name for field in act.fields if field.label and not field.shown}
    return {name: value for name, value in given.items() if name not in asked and value}


def _asks_number(act: Act, count: int | None, capped: bool) -> bool:
    return count is not None and (act.deletes or count > MANY or capped)


def _needs_why(act: Act, count: int | None) -> bool:
    """What cannot be undone and is about many, or ends what others run, is done by a page with a reason alone."""
    return act.needs_why or (act.deletes and count is not None and count > 1)


async def confirm(site: Site, call: Call, act: Act) -> Response:
    """The page that says what would happen. Nothing is changed by looking at it."""
    act = await _formed(site, call, act, dict(call.request.query_params))
    query = call.query((*(field.name for field in act.fields), "back"))
    for field in act.fields:
        if field.kind == "json" and field.name in query:
            raise ConfigurationError(
                f"{field.name} is not taken from an address, which browsers and logs keep. Send it by the form"
            )
    back = local(query.pop("back", ""))
    return await _show(site, call, act, fields_of_link(act, query), back, sent=query)


async def _show(
    site: Site,
    call: Call,
    act: Act,
    given: dict[str, str],
    back: str,
    refused: str = "",
    sent: Mapping[str, str] | None = None,
) -> Response:
    """`refused`: why it was not done when it was confirmed. The typed values are kept. `sent`: with what was left empty."""
    found, trouble = None, ""
    missing = any(field.shown and field.required and field.name not in given for field in act.fields)
    if act.form is not None and sent is not None:  # what may be left empty was perhaps not asked for yet
        optional = {field.name for field in act.fields if field.label and field.shown and not field.required}
        missing = missing or (bool(optional) and optional.isdisjoint(sent))
    try:
        if not missing:
            found = await preview(site, call, act, {**_defaults(act), **given})
    except HoldfastError as error:
        trouble = sentence_of(error)
    count, capped = (found.count, found.capped) if found else (None, False)
    given = {**given, **(found.fixed if found else {})}
    shown = Shown(act.name, call.who.name, _chosen(act, given), count, capped)
    good = not (missing or trouble)  # what could not be shown cannot be confirmed
    context = {
        "act": act,
        "given": _chosen(act, given),
        "values": {**_defaults(act), **given},
        "asked": [field for field in act.fields if field.label and field.shown != good],
        "look": any(field.shown for field in act.fields) and not good,
        "preview": found,
        "trouble": refused or trouble,
        "typed": _asks_number(act, count, capped),
        "why": WHY if _needs_why(act, count) else "",
        "seal": site.seals.make(shown) if good else "",
        "back": back,
        "words": act.command({**_defaults(act), **given}),
        "post": address(f"acts/{slug(act.name)}"),
    }
    fragment = call.request.headers.get("x-fragment") == "1"
    status = HTTPStatus.BAD_REQUEST if refused else HTTPStatus.OK
    return call.html("confirm_part.html" if fragment else "confirm.html", context, status)


async def _formed(site: Site, call: Call, act: Act, given: Given) -> Act:
    """The act as a page asks for it."""
    if act.form is None:
        return act
    check_texts(dict(given))
    fields = await site.look(act.form(given))
    return replace(act, fields=(*fields, *(field for field in act.fields if field.name == WHY)))


def fields_of_link(act: Act, query: Mapping[str, str]) -> dict[str, str]:
    """An offer may leave open what the form asks."""
    _check_names(act, query)
    asked = {field.name for field in act.fields if field.label}
    for field in act.fields:
        if field.required and not query.get(field.name) and field.name not in asked:
            raise ConfigurationError(f"{act.name} needs {field.name}")
    return {name: value for name, value in query.items() if value != ""}


def _defaults(act: Act) -> dict[str, str]:
    return {
        field.name: field.value or (field.choices[0] if field.choices else "")
        for field in act.fields
        if field.label
    }


async def act_by_form(site: Site, call: Call, act: Act) -> Response:
    form = await call.form()
    seal, typed, back = form.pop("seal", ""), form.pop("typed", ""), local(form.pop("back", ""))
    act = await _formed(site, call, act, form)
    if form.pop("look", ""):  # a preview that depends on what somebody typed
        return await _show(site, call, act, fields_of_link(act, form), back, sent=form)
    try:
        given = fields_of(act, form)
        if not act.at_once:
            await _check_confirmed(site, call, act, given, seal, typed)
        said = await do(site, call, act, given)
    except ConfigurationError as error:
        if act.at_once or not any(field.label and form.get(field.name) for field in act.fields):
            raise
        return await _show(site, call, act, fields_of_link(act, form), back, sentence_of(error))
    if said.secret:
        return call.html("done.html", {"said": said, "act": act, "back": back or local(said.page)})
    where = local(_left(act, back, said) or said.page)
    response = RedirectResponse(call.prefix + "/" + where, HTTPStatus.SEE_OTHER)
    set_cookie(call.request, response, SAID, _packed(site, said), 30)
    return call.kept(response)


def _left(act: Act, back: str, said: ActResult) -> str:
    """Where to continue. The page of a deleted item is gone too: then it is the list that had it."""
    path, _, _ = back.partition("?")
    if act.deletes and "/" in path:
        return said.page or path.partition("/")[0]
    return back


async def _check_confirmed(site: Site, call: Call, act: Act, given: Given, seal: str, typed: str) -> None:
    """The confirmed act is exactly the one that was shown, once."""
    shown = site.seals.read(seal, act.name, call.who.name, _chosen(act, given))
    if shown is None:
        raise Refusal(
            HTTPStatus.CONFLICT,
            "this was not shown before, or too long ago. Look at the preview again, then confirm",
        )
    count = shown.count
    if _asks_number(act, count, shown.capped) and typed.replace(",", "").strip() != str(count):
        raise Refusal(HTTPStatus.CONFLICT, f"type {count:,} to confirm. Nothing was changed")
    if _needs_why(act, count) and not given.get(WHY, "").strip():
        raise Refusal(HTTPStatus.CONFLICT, "say why: it is kept in the audit. Nothing was changed")
    if count is not None:
        await _check_no_more(site, call, act, given, shown)
    if not site.seals.use(seal):
        raise Refusal(
            HTTPStatus.CONFLICT,
            "this was confirmed before, and is done once. Look at the preview again to do it once more",
        )


async def _check_no_more(site: Site, call: Call, act: Act, given: Given, shown: Shown) -> None:
    now = await preview(site, call, act, {**_defaults(act), **given})
    if now is None or now.count is None or shown.count is None:
        return
    if now.count > shown.count or now.capped > shown.capped:
        more = "+" if now.capped else ""
        raise Refusal(
            HTTPStatus.CONFLICT,
            f"{now.count:,}{more} fit now, {shown.count:,} were shown. Nothing was changed. "
            "Look at the preview again, then confirm",
        )


def _same(one: str, other: str) -> bool:
    import hmac

    return hmac.compare_digest(one.encode(), other.encode())


@dataclass(frozen=True, slots=True)
class Notice:
    """What an act did, for the page after it."""

    sentence: str
    undo: Offer | None = None


def _packed(site: Site, said: ActResult) -> str:
    undo = None if said.undo is None else [said.undo.act, dict(said.undo.given), said.undo.label]
    sentence = masked_text(said.sentence, names=site.masked_of(""))[:600]  # a browser keeps 4 KiB
    told = json.dumps([sentence, undo], ensure_ascii=False)
    text = base64.urlsafe_b64encode(told.encode()).decode()
    return f"{text}.{site.csrf.sign('said', text)}"


def said_before(site: Site, request: Request) -> Notice | None:
    """The result of the act before this page. Only the server can have made it."""
    text, _, mark = request.cookies.get(SAID, "").partition(".")
    if not text or not _same(mark, site.csrf.sign("said", text)):
        return None
    try:
        sentence, undo = json.loads(base64.urlsafe_b64decode(text))
    except ValueError:  # by another release, which had the same secret
        return None
    return Notice(sentence, None if undo is None else Offer(*undo))


# Programs -----------------------------------------------------------------------------------------------------------


async def act_by_name(site: Site, call: Call) -> Response:
    """`{"verb": "jobs retry", "selection": {"queue": "mail"}}`: the same as the act's own address with what is selected."""
    sent = await _body(call)
    asked = _object(sent)
    if unknown := sorted(set(asked) - {"verb", "selection", WHY}):
        raise ConfigurationError(
            f"an operation does not know {unknown[0][:40]!r} (known: verb, selection, reason)"
        )
    verb, selection = asked.get("verb"), asked.get("selection", {})
    act = site.acts.get(verb) if isinstance(verb, str) else None
    if act is None or not isinstance(selection, dict):
        raise ConfigurationError(
            "an operation has a verb, such as jobs retry, and a selection: an object of its fields"
        )
    if not call.who.may(act.role):
        said = f"{act.name} needs the role {act.role}, and {call.who.name} is {call.who.role}"
        raise Refusal(HTTPStatus.FORBIDDEN, said)
    reason = {WHY: asked[WHY]} if WHY in asked else {}
    return await _done_by_api(site, call, act, sent, {**selection, **reason})


async def act_by_api(site: Site, call: Call, act: Act) -> Response:
    sent = await _body(call)
    asked, named = _object(sent), call.request.path_params
    if twice := sorted(set(asked) & set(named)):
        raise ConfigurationError(f"{twice[0]} is in the address: leave it out of the body")
    return await _done_by_api(site, call, act, sent, {**asked, **named})


async def _done_by_api(site: Site, call: Call, act: Act, sent: bytes, asked: Mapping[str, Any]) -> Response:
    dry = _dry_run(call)
    given = fields_of(act, _texts(asked, act))
    if dry:
        found = await preview(site, call, act, given)
        return call.json({"act": act.name, "dry_run": True, "preview": found})

    async def done() -> tuple[Response, bytes]:
        said = await do(site, call, act, given)
        body = {"act": act.name, "dry_run": False, "sentence": said.sentence, "done": said.data}
        if not said.secret:
            answer = call.json(body)
            return answer, bytes(answer.body)
        seen = for_role(plain(body), call.who.role)
        shown_once = Response(written({**seen, "secret": said.secret}), media_type="application/json")
        return shown_once, written(seen)

    return await once(call, sent, done)


def _dry_run(call: Call) -> bool:
    """A request for a preview must not become an act by a slip in its spelling."""
    query = call.request.query_params.multi_items()
    if unknown := [name for name, _ in query if name != "dry_run"]:
        raise ConfigurationError(f"an act does not know the parameter {unknown[0][:40]!r} (known: dry_run)")
    found = {_YES_OR_NO.get(value.lower()) for _, value in query}
    if None in found or len(found) > 1:
        said = " and ".join(repr(value[:40]) for _, value in query)
        raise ConfigurationError(f"dry_run must be 1 or 0 (true, yes, on; false, no, off), not {said}")
    return True in found


async def _body(call: Call) -> bytes:
    if not call.request.headers.get("authorization"):
        raise Refusal(HTTPStatus.FORBIDDEN, "a program sends Authorization: a cookie is not enough here")
    body = b""
    async for part in call.request.stream():
        body += part
        if len(body) > 1024 * 1024:
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "a body has 1 MiB at most")
    return body


def _object(body: bytes) -> dict[str, Any]:
    try:
        found: Any = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigurationError("the body must be a JSON object of the act's fields")
    return found


def _texts(found: Mapping[str, Any], act: Act) -> dict[str, str]:
    known = {field.name: field for field in act.fields}
    for name, value in found.items():
        if name in known and not takes(known[name], value):
            raise ConfigurationError(f"{name} cannot be {json.dumps(value)[:60]}: see /api/v1/openapi.json")
    return {
        str(name): _text(value) for name, value in found.items() if value is not None and value is not False
    }


def _text(value: Any) -> str:
    """As a form would send it. None and False are what is not given."""
    if isinstance(value, str):
        return value
    if value is True:
        return "1"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return " ".join(value)
    return json.dumps(value)
