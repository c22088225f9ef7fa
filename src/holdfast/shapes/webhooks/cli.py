"""`holdfast webhook`: the endpoints of tenants and their deliveries; pause, enable, rotate, ping, redeliver."""

import dataclasses
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import typer

from holdfast.cli import render
from holdfast.cli.apps import APP_VARIABLE, Where, load_app
from holdfast.cli.arguments import parse_moment, parse_rate, parse_span
from holdfast.cli.command import Shown, command
from holdfast.cli.confirm import How, confirm
from holdfast.cli.filters import AfterOption, LimitOption
from holdfast.errors import ConfigurationError
from holdfast.model.queue import Rate
from holdfast.operate.operator import Operator
from holdfast.operate.wording import several
from holdfast.shapes.webhooks import asked
from holdfast.shapes.webhooks.acts import Acts, Ranged, unknown, unknown_delivery
from holdfast.shapes.webhooks.model import Attempt, Delivery, Endpoint, Secret, endpoint_of
from holdfast.shapes.webhooks.spec import Spec

app = typer.Typer(help="Endpoints of webhooks: create, pause, rotate, ping, redeliver.", no_args_is_help=True)
EndpointArgument = Annotated[UUID, typer.Argument(metavar="ENDPOINT")]
DeliveryArgument = Annotated[UUID, typer.Argument(metavar="DELIVERY")]
TenantOption = Annotated[str | None, typer.Option("--tenant", "-t", help="Only of this tenant.")]
UrlOption = Annotated[str | None, typer.Option("--url", help="Where requests go.")]
EventOption = Annotated[
    list[str] | None,
    typer.Option("--event", "-e", metavar="TYPE", help="A type such as order.*; may be repeated."),
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option("--header", metavar="NAME:VALUE", help="Sent with each request; may be repeated."),
]
RateOption = Annotated[str | None, typer.Option("--rate", metavar="RATE", help="Such as 5/s or 100/m.")]
ConcurrencyOption = Annotated[
    int | None, typer.Option("--concurrency", help="Requests at once, by one worker.")
]
DescriptionOption = Annotated[str | None, typer.Option("--description")]


class Hooks:
    """The acts of the operator at this command line, on an endpoint of whichever tenant."""

    def __init__(self, operator: Operator, where: Where | None = None) -> None:
        self._operator = operator
        self.acts = Acts(_spec(where), operator.actor)

    def run(self, act: Any) -> Any:
        return self._operator.database.run(act)

    def tenant(self, endpoint: UUID) -> str:
        found: str | None = self.run(lambda: asked.tenant_of(endpoint))
        if found is None:
            raise unknown(endpoint, "there is")
        return found

    def tenant_of_delivery(self, delivery: UUID) -> str:
        found: str | None = self.run(lambda: asked.tenant_of_delivery(delivery))
        if found is None:
            raise unknown_delivery(delivery, "there is")
        return found


def _spec(where: Where | None) -> Spec:
    """As the app declares them, where one is named; else the defaults."""
    name = None if where is None else where.app or os.environ.get(APP_VARIABLE)
    declared = {} if name is None else load_app(name).tasks.declared("webhooks")
    for spec, _ in declared.values():
        found: Spec = spec
        return found
    return Spec()


def _say(text: str, _: object) -> None:
    typer.echo(text)


# Look ----------------------------------------------------------------------------------------------------------------


@app.command("list")
@command
def list_command(
    tenant: TenantOption = None, limit: LimitOption = 50, after: AfterOption = None, *, operator: Operator
) -> Shown[list[Endpoint]]:
    """List endpoints, of all tenants or of one, in the order in which they were made."""
    hooks = Hooks(operator)
    if tenant is not None:
        found = hooks.run(hooks.acts.listed(tenant, after, limit))
    else:
        found = [endpoint_of(one) for one in hooks.run(lambda: asked.list_all(after, limit))]
    return Shown(found, _print_list, {"endpoints": [_plain(one) for one in found]})


def _print_list(found: Sequence[Endpoint]) -> None:
    if not found:
        typer.echo("No endpoints. Make one: holdfast webhook create --tenant TENANT --url URL")
        return
    rows = [
        [str(e.id), render.line(e.tenant), _status(e), ", ".join(e.events), render.one_line(e.url, 60)]
        for e in found
    ]
    render.print_table(("endpoint", "tenant", "status", "events", "url"), rows)


def _status(found: Endpoint) -> str:
    return found.status if found.disabled_reason is None else f"{found.status}: {found.disabled_reason}"


def _plain(found: Endpoint) -> dict[str, Any]:
    names = [name for name in found.__slots__ if name not in ("secret", "rate")]
    made = {name: getattr(found, name) for name in names}
    made["rate"] = None if found.rate is None else found.rate.per_second
    return made


@app.command("show")
@command
def show_command(endpoint: EndpointArgument, operator: Operator) -> Shown[Endpoint]:
    """Show an endpoint, its health, its secrets without their values, what waits, and ranges that are redelivered."""
    hooks = Hooks(operator)
    tenant = hooks.tenant(endpoint)
    found = hooks.run(hooks.acts.get(endpoint, tenant))
    more = hooks.run(hooks.acts.details(endpoint, tenant))
    return Shown(found, partial(_print_shown, more), {**_plain(found), **more})


def _print_shown(more: dict[str, Any], found: Endpoint) -> None:
    health = more["health"] or {}
    facts = {
        "endpoint": str(found.id),
        "tenant": found.tenant,
        "url": found.url,
        "events": ", ".join(found.events),
        "status": _status(found),
        "ordered": "yes" if found.ordered else "no",
        "rate": None if found.rate is None else f"{found.rate.per_second:g} in a second",
        "waiting": f"{more['waiting']:,}",
        "failing": health.get("failing_since") and f"since {health['failing_since']}: {health['last_error']}",
        "delivered": health.get("last_success_at") and f"last at {health['last_success_at']}",
        "description": found.description or None,
    }
    for name, value in facts.items():
        if value is not None:
            typer.echo(f"{name:<13}{render.line(str(value))}")
    for one in more["secrets"]:
        ends = "in use" if one["expires_at"] is None else f"expires {one['expires_at']}"
        by = "bare" if one["key_id"] is None else f"sealed by {one['key_id']}"
        public = f", {one['public_key']}" if one["public_key"] else ""
        typer.echo(f"secret       {one['id']}, {one['scheme']}, {by}, {ends}{public}")
    for one in more["ranges"]:
        done = f"position {one['position']:,} of {one['until']:,}, {several(one['made'], 'delivery')}"
        typer.echo(f"redelivers   {one['only']}: {done}")


# Change --------------------------------------------------------------------------------------------------------------


@app.command("create")
@command
def create_command(
    tenant: Annotated[str, typer.Option("--tenant", "-t", help="Whose it is.")],
    url: Annotated[str, typer.Option("--url", help="Where requests go.")],
    where: Where,
    operator: Operator,
    event: EventOption = None,
    ordered: Annotated[bool, typer.Option("--ordered", help="Events of a key arrive in order.")] = False,
    scheme: Annotated[str, typer.Option("--scheme", help="v1 (HMAC) or v1a (ed25519).")] = "v1",
    rate: RateOption = None,
    concurrency: ConcurrencyOption = None,
    header: HeaderOption = None,
    description: DescriptionOption = None,
) -> Shown[Endpoint]:
    """Make an endpoint. Its secret is printed once, and never again."""
    hooks = Hooks(operator, where)
    given = {
        "url": url,
        "events": event or ["*"],
        "rate": _rate(rate),
        "concurrency": concurrency,
        "headers": _headers(header),
        "description": description,
    }
    made: Endpoint = hooks.run(hooks.acts.create(tenant, scheme, ordered, given))
    assert made.secret is not None
    return Shown(made, _print_made, {**_plain(made), "secret": _shown_once(made.secret)})


def _print_made(made: Endpoint) -> None:
    assert made.secret is not None
    typer.echo(f"Endpoint {made.id} of {render.line(made.tenant)} is active.")
    typer.echo(f"Its secret, which is not shown again: {made.secret.value!s}")


def _shown_once(secret: Secret) -> dict[str, Any]:
    return {"id": secret.id, "value": str(secret.value)}


def _rate(text: str | None) -> Rate | None:
    return None if text is None else Rate(parse_rate(text, "--rate"))


def _headers(given: Sequence[str] | None) -> dict[str, str] | None:
    if not given:
        return None
    found = {}
    for one in given:
        name, colon, value = one.partition(":")
        if not colon:
            raise ConfigurationError("--header must be NAME:VALUE, and one has no ':'")
        found[name.strip()] = value.strip()
    return found


@app.command("update")
@command
def update_command(
    endpoint: EndpointArgument,
    where: Where,
    operator: Operator,
    url: UrlOption = None,
    event: EventOption = None,
    rate: RateOption = None,
    concurrency: ConcurrencyOption = None,
    header: HeaderOption = None,
    description: DescriptionOption = None,
) -> Shown[Endpoint]:
    """Change what is given. Headers replace all that there are."""
    given = {
        "url": url,
        "events": event,
        "rate": _rate(rate),
        "concurrency": concurrency,
        "headers": _headers(header),
        "description": description,
    }
    if all(value is None for value in given.values()):
        raise ConfigurationError("say what to change: --url, --event, --rate or another option")
    return _updated(Hooks(operator, where), endpoint, "changed", **given)


def _updated(hooks: Hooks, endpoint: UUID, done: str, **given: Any) -> Shown[Endpoint]:
    found = hooks.run(hooks.acts.update(endpoint, hooks.tenant(endpoint), **given))
    return Shown(found, partial(_say, f"Endpoint {endpoint} is {done}."), _plain(found))


@app.command("pause")
@command
def pause_command(endpoint: EndpointArgument, operator: Operator) -> Shown[Endpoint]:
    """Send nothing more to an endpoint. What is pending waits; new events make no deliveries."""
    return _updated(Hooks(operator), endpoint, "paused", status="paused")


@app.command("enable")
@command
def enable_command(endpoint: EndpointArgument, operator: Operator) -> Shown[Endpoint]:
    """Send again to an endpoint that was paused or disabled. After a disabled time one delivery is tried first."""
    return _updated(Hooks(operator), endpoint, "active", status="active")


@app.command("disable")
@command
def disable_command(endpoint: EndpointArgument, how: How, operator: Operator) -> Shown[Endpoint]:
    """Send nothing more to an endpoint, and cancel what is pending."""
    hooks = Hooks(operator)
    waiting = several(hooks.run(hooks.acts.details(endpoint, hooks.tenant(endpoint)))["waiting"], "delivery")
    if how.dry_run:
        found = hooks.run(hooks.acts.get(endpoint, hooks.tenant(endpoint)))
        said = f"Dry run: {endpoint} would be disabled, and {waiting} cancelled. Nothing was changed."
        return Shown(found, partial(_say, said), {**_plain(found), "dry_run": True})
    confirm(f"disable endpoint {endpoint} and cancel {waiting}", how.yes)
    return _updated(hooks, endpoint, "disabled", status="disabled")


@app.command("delete")
@command
def delete_command(endpoint: EndpointArgument, how: How, operator: Operator) -> Shown[UUID]:
    """Remove an endpoint and its secrets. What is pending is cancelled; what was delivered stays to be looked at."""
    hooks = Hooks(operator)
    tenant = hooks.tenant(endpoint)
    if how.dry_run:
        said = f"Dry run: endpoint {endpoint} would be deleted. Nothing was changed."
        return Shown(endpoint, partial(_say, said), {"endpoint": endpoint, "deleted": False, "dry_run": True})
    confirm(f"delete endpoint {endpoint} of {tenant}", how.yes)
    hooks.run(hooks.acts.delete(endpoint, tenant))
    answer = {"endpoint": endpoint, "deleted": True, "dry_run": False}
    return Shown(endpoint, partial(_say, f"Endpoint {endpoint} is deleted."), answer)


# Secrets -------------------------------------------------------------------------------------------------------------


@app.command("rotate")
@command
def rotate_command(
    endpoint: EndpointArgument,
    operator: Operator,
    overlap: Annotated[
        str, typer.Option(metavar="SPAN", help="How long the old secrets sign too; 0 after a leak.")
    ] = "24h",
) -> Shown[Secret]:
    """Make a new secret, printed once. The old ones sign beside it for a while."""
    hooks = Hooks(operator)
    lasts = 0.0 if overlap == "0" else parse_span(overlap, "--overlap")
    made = hooks.run(hooks.acts.rotate(endpoint, hooks.tenant(endpoint), lasts))
    return Shown(made, _print_secret, {"endpoint": endpoint, "secret": _shown_once(made)})


def _print_secret(made: Secret) -> None:
    typer.echo(f"The new secret, which is not shown again: {made.value!s}")


@app.command("reseal")
@command
def reseal_command(operator: Operator) -> Shown[int]:
    """Seal all secrets and headers by the first key of HOLDFAST_SECRET_KEYS. The other keys are not needed then."""
    hooks = Hooks(operator)
    act = hooks.acts.reseal()
    total = 0
    while done := hooks.run(act):
        total += done
    return Shown(total, partial(_say, f"{several(total, 'secret')} sealed anew."), {"sealed": total})


# Deliveries ----------------------------------------------------------------------------------------------------------


@app.command("ping")
@command
def ping_command(endpoint: EndpointArgument, operator: Operator) -> Shown[Delivery]:
    """Send a test message once, also to an endpoint that is paused or disabled."""
    hooks = Hooks(operator)
    made = hooks.run(hooks.acts.ping(endpoint, hooks.tenant(endpoint)))
    return Shown(made, partial(_say, f"Ping {made.id} is on its way: holdfast webhook delivery {made.id}"))


@app.command("deliveries")
@command
def deliveries_command(
    endpoint: EndpointArgument,
    operator: Operator,
    status: Annotated[
        str | None, typer.Option("--status", "-s", help="pending, delivered, failed or cancelled.")
    ] = None,
    limit: LimitOption = 50,
    after: AfterOption = None,
) -> Shown[list[Delivery]]:
    """List the deliveries of an endpoint, the newest first."""
    hooks = Hooks(operator)
    found = hooks.run(hooks.acts.deliveries(hooks.tenant(endpoint), endpoint, status, after, limit))
    return Shown(found, _print_deliveries, {"deliveries": found})


def _print_deliveries(found: Sequence[Delivery]) -> None:
    if not found:
        typer.echo("No deliveries.")
        return
    rows = [
        [str(d.id), render.moment(d.created_at), d.event_type, d.cause, d.status, str(d.tries), _last(d)]
        for d in found
    ]
    heads = ("delivery", "when", "type", "cause", "status", "attempts", "last")
    render.print_table(heads, rows, ("attempts",))


def _last(found: Delivery) -> str:
    status = None if found.last_status is None else f"HTTP {found.last_status}"
    return render.one_line(found.reason or found.last_error or status) or "-"


@app.command("delivery")
@command
def delivery_command(delivery: DeliveryArgument, operator: Operator) -> Shown[Delivery]:
    """Show one delivery with its attempts."""
    hooks = Hooks(operator)
    return Shown(
        hooks.run(hooks.acts.delivery(delivery, hooks.tenant_of_delivery(delivery))), _print_delivery
    )


def _print_delivery(found: Delivery) -> None:
    facts = {
        "delivery": found.id,
        "endpoint": found.endpoint_id,
        "event": f"{found.event_id}, {found.event_type}",
        "cause": found.cause,
        "status": found.status if found.reason is None else f"{found.status}: {found.reason}",
        "next": None if found.next_attempt_at is None else render.moment(found.next_attempt_at),
    }
    for name, value in facts.items():
        if value is not None:
            typer.echo(f"{name:<10}{render.line(str(value))}")
    if found.attempts:
        rows = [_row(one) for one in found.attempts]
        render.print_table(("n", "when", "status", "error", "took", "address", "url"), rows, ("n", "took"))


def _row(one: Attempt) -> list[str]:
    return [
        str(one.n),
        render.moment(one.at),
        str(one.status or "-"),
        render.one_line(one.detail or one.error) or "-",
        render.seconds(one.took.total_seconds()),
        one.address or "-",
        render.one_line(one.url, 60),
    ]


@app.command("redeliver")
@command
def redeliver_command(delivery: DeliveryArgument, where: Where, operator: Operator) -> Shown[Delivery]:
    """Deliver an event once more: with the same id, to the endpoint's address and with its secrets of now."""
    hooks = Hooks(operator, where)
    made = hooks.run(hooks.acts.redeliver(delivery, hooks.tenant_of_delivery(delivery)))
    return Shown(made, partial(_say, f"Delivery {made.id} is pending: holdfast webhook delivery {made.id}"))


@app.command("redeliver-range")
@command
def redeliver_range_command(
    endpoint: EndpointArgument,
    begin: Annotated[
        str,
        typer.Option("--from", metavar="PLACE", help="After a position, a time, or how long ago: 15m, 2h."),
    ],
    how: How,
    where: Where,
    operator: Operator,
    end: Annotated[
        str | None, typer.Option("--to", metavar="PLACE", help="Up to it.", show_default="the end of the log")
    ] = None,
    only: Annotated[str, typer.Option("--only", help="failed, missing or all.")] = "failed",
    rate: RateOption = None,
) -> Shown[Ranged]:
    """Deliver a range of the log once more to one endpoint: what failed, what it never got, or all."""
    hooks = Hooks(operator, where)
    tenant = hooks.tenant(endpoint)
    ask = partial(
        hooks.acts.redeliver_range,
        endpoint,
        tenant,
        _place(begin, "--from"),
        None if end is None else _place(end, "--to"),
        only,  # type: ignore[arg-type]  # it is checked there
        _rate(rate),
    )
    found: Ranged = hooks.run(ask(dry_run=True))
    events = several(found.count, "event")
    if how.dry_run:
        said = f"Dry run: {events} would be delivered once more. Nothing was changed."
    else:
        confirm(f"deliver {events} once more to endpoint {endpoint}", how.yes)
        found = hooks.run(ask(dry_run=False))
        said = f"{several(found.count, 'event')} will be delivered once more. Progress: holdfast webhook show {endpoint}"
    return Shown(
        found,
        partial(_say, said),
        {"endpoint": endpoint, "dry_run": how.dry_run, **dataclasses.asdict(found)},
    )


def _place(text: str, option: str) -> int | datetime:
    if text.isascii() and text.isdigit():
        return int(text[:18])
    at = parse_moment(text, option)
    return at if isinstance(at, datetime) else datetime.now(UTC) - at
