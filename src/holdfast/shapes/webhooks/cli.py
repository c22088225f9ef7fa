"""`holdfast webhook`: the endpoints of tenants and their deliveries; pause, enable, rotate, ping, redeliver."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import typer

from holdfast.cli import render
from holdfast.cli.apps import Where
from holdfast.cli.arguments import parse_span
from holdfast.cli.command import Shown, command
from holdfast.cli.confirm import How, confirm
from holdfast.cli.filters import AfterOption, LimitOption
from holdfast.errors import ConfigurationError
from holdfast.operate.operator import Operator
from holdfast.operate.wording import several
from holdfast.shapes.webhooks import cli_deliveries, store_acts
from holdfast.shapes.webhooks.checking import NONE
from holdfast.shapes.webhooks.cli_deliveries import EndpointArgument, Hooks, RateOption, rate_of, say
from holdfast.shapes.webhooks.model import Endpoint, Secret, endpoint_of

app = typer.Typer(help="Endpoints of webhooks: create, pause, rotate, ping, redeliver.", no_args_is_help=True)
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
ConcurrencyOption = Annotated[
    int | None, typer.Option("--concurrency", help="Requests at once, over all workers.")
]
DescriptionOption = Annotated[
    str | None, typer.Option("--description", help="A note for people, such as whose it is.")
]


# Look ----------------------------------------------------------------------------------------------------------------


@app.command("list")
@command(looks=True)
def list_command(
    tenant: TenantOption = None, limit: LimitOption = 50, after: AfterOption = None, *, operator: Operator
) -> Shown[list[Endpoint]]:
    """List endpoints, of all tenants or of one, in the order of their creation."""
    hooks = Hooks(operator)
    if tenant is not None:
        found = hooks.run(hooks.acts.listed(tenant, after, limit))
    else:
        found = [endpoint_of(one) for one in hooks.run(lambda: store_acts.list_all(after, limit))]
    return Shown(found, _print_list, {"endpoints": [_plain(one) for one in found]})


def _print_list(found: Sequence[Endpoint]) -> None:
    if not found:
        typer.echo("No endpoints. Make one: holdfast webhook create --tenant TENANT --url URL")
        return
    rows = [
        [
            render.job_id(e.id),
            render.line(e.tenant),
            _status(e),
            ", ".join(e.events),
            render.one_line(e.url, 60),
        ]
        for e in found
    ]
    render.print_table(("endpoint", "tenant", "status", "events", "url"), rows, drop=("events", "tenant"))


def _status(found: Endpoint) -> str:
    return found.status if found.disabled_reason is None else f"{found.status}: {found.disabled_reason}"


def _plain(found: Endpoint) -> dict[str, Any]:
    names = [name for name in found.__slots__ if name not in ("secret", "rate")]
    made = {name: getattr(found, name) for name in names}
    made["rate"] = None if found.rate is None else found.rate.per_second
    return made


@app.command("show")
@command(looks=True)
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
        "at once": f"{found.concurrency:,}",
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
    """Create an endpoint. Its secret is printed once, and never again."""
    hooks = Hooks(operator, where)
    given = {
        "url": url,
        "events": event or ["*"],
        "rate": rate_of(rate),
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
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="RATE", help="Such as 5/s or 100/m; none takes it away.")
    ] = None,
    concurrency: ConcurrencyOption = None,
    header: HeaderOption = None,
    description: DescriptionOption = None,
) -> Shown[Endpoint]:
    """Change the given options of an endpoint. Headers replace all that there are."""
    given = {
        "url": url,
        "events": event,
        "rate": rate if rate == NONE else rate_of(rate),
        "concurrency": concurrency,
        "headers": _headers(header),
        "description": description,
    }
    if all(value is None for value in given.values()):
        raise ConfigurationError("say what to change: --url, --event, --rate or another option")
    return _updated(Hooks(operator, where), endpoint, "changed", **given)


def _updated(hooks: Hooks, endpoint: UUID, done: str, **given: Any) -> Shown[Endpoint]:
    found = hooks.run(hooks.acts.update(endpoint, hooks.tenant(endpoint), **given))
    return Shown(found, partial(say, f"Endpoint {endpoint} is {done}."), _plain(found))


@app.command("pause")
@command
def pause_command(endpoint: EndpointArgument, operator: Operator) -> Shown[Endpoint]:
    """Stop sending to an endpoint. What is pending waits; new events make no deliveries."""
    return _updated(Hooks(operator), endpoint, "paused", status="paused")


@app.command("enable")
@command
def enable_command(endpoint: EndpointArgument, operator: Operator) -> Shown[Endpoint]:
    """Send again to an endpoint that was paused or disabled. After a disabled time one delivery is tried first."""
    return _updated(Hooks(operator), endpoint, "active", status="active")


@app.command("disable")
@command
def disable_command(endpoint: EndpointArgument, how: How, operator: Operator) -> Shown[Endpoint]:
    """Stop sending to an endpoint, and cancel its pending deliveries."""
    hooks = Hooks(operator)
    waiting = several(hooks.run(hooks.acts.details(endpoint, hooks.tenant(endpoint)))["waiting"], "delivery")
    if how.dry_run:
        found = hooks.run(hooks.acts.get(endpoint, hooks.tenant(endpoint)))
        said = f"Dry run: {endpoint} would be disabled, and {waiting} cancelled. Nothing was changed."
        return Shown(found, partial(say, said), {**_plain(found), "dry_run": True})
    confirm(f"disable endpoint {endpoint} and cancel {waiting}", how.yes)
    return _updated(hooks, endpoint, "disabled", status="disabled")


@app.command("delete")
@command
def delete_command(endpoint: EndpointArgument, how: How, operator: Operator) -> Shown[UUID]:
    """Remove an endpoint and its secrets. What is pending is cancelled; past deliveries can still be inspected."""
    hooks = Hooks(operator)
    tenant = hooks.tenant(endpoint)
    if how.dry_run:
        said = f"Dry run: endpoint {endpoint} would be deleted. Nothing was changed."
        return Shown(endpoint, partial(say, said), {"endpoint": endpoint, "deleted": False, "dry_run": True})
    confirm(f"delete endpoint {endpoint} of {tenant}", how.yes)
    hooks.run(hooks.acts.delete(endpoint, tenant))
    answer = {"endpoint": endpoint, "deleted": True, "dry_run": False}
    return Shown(endpoint, partial(say, f"Endpoint {endpoint} is deleted."), answer)


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
    """Create a new secret and print it once. The old ones sign beside it for a while."""
    hooks = Hooks(operator)
    lasts = 0.0 if overlap == "0" else parse_span(overlap, "--overlap")
    made = hooks.run(hooks.acts.rotate(endpoint, hooks.tenant(endpoint), lasts))
    return Shown(made, _print_secret, {"endpoint": endpoint, "secret": _shown_once(made)})


def _print_secret(made: Secret) -> None:
    typer.echo(f"The new secret, which is not shown again: {made.value!s}")


@app.command("reseal")
@command
def reseal_command(operator: Operator) -> Shown[int]:
    """Encrypt all secrets and headers with the first key of HOLDFAST_SECRET_KEYS. The other keys are not needed then."""
    hooks = Hooks(operator)
    act = hooks.acts.reseal()
    total = 0
    while done := hooks.run(act):
        total += done
    return Shown(total, partial(say, f"{several(total, 'secret')} resealed."), {"sealed": total})


app.registered_commands += cli_deliveries.app.registered_commands
