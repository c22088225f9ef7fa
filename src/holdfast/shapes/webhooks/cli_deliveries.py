"""`holdfast webhook`, the part of deliveries: look at them, ping, redeliver; and what every command of the group needs."""

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import typer

from holdfast.cli import render
from holdfast.cli.apps import Where, load_app, named_app
from holdfast.cli.arguments import parse_moment, parse_rate
from holdfast.cli.command import Shown, command
from holdfast.cli.confirm import How, confirm
from holdfast.cli.filters import AfterOption, LimitOption
from holdfast.cli.ids import id_parser
from holdfast.model.queue import Rate
from holdfast.operate.operator import Operator
from holdfast.operate.wording import several
from holdfast.shapes.webhooks import store_acts
from holdfast.shapes.webhooks.acts import Acts, Ranged, unknown, unknown_delivery
from holdfast.shapes.webhooks.model import Attempt, Delivery
from holdfast.shapes.webhooks.spec import Spec

app = typer.Typer()
parse_endpoint = id_parser("endpoint", store_acts.endpoint_ids_between)
parse_delivery = id_parser("delivery", store_acts.delivery_ids_between)
EndpointArgument = Annotated[
    UUID,
    typer.Argument(metavar="ENDPOINT", help="The endpoint's id, or its beginning.", parser=parse_endpoint),
]
DeliveryArgument = Annotated[
    UUID,
    typer.Argument(metavar="DELIVERY", help="The delivery's id, or its beginning.", parser=parse_delivery),
]
RateOption = Annotated[str | None, typer.Option("--rate", metavar="RATE", help="Such as 5/s or 100/m.")]


class Hooks:
    """The acts of the operator at this command line, on an endpoint of any tenant."""

    def __init__(self, operator: Operator, where: Where | None = None) -> None:
        self._operator = operator
        self.acts = Acts(_spec(where), operator.actor)

    def run(self, act: Any) -> Any:
        return self._operator.database.run(act)

    def tenant(self, endpoint: UUID) -> str:
        found: str | None = self.run(lambda: store_acts.tenant_of(endpoint))
        if found is None:
            raise unknown(endpoint, "there is")
        return found

    def tenant_of_delivery(self, delivery: UUID) -> str:
        found: str | None = self.run(lambda: store_acts.tenant_of_delivery(delivery))
        if found is None:
            raise unknown_delivery(delivery, "there is")
        return found


def _spec(where: Where | None) -> Spec:
    """As the app declares them, if one is named; otherwise the defaults."""
    known = where is not None and (where.app or named_app())
    declared = load_app(where.app).tasks.declared("webhooks") if where and known else {}
    for spec, _ in declared.values():
        found: Spec = spec
        return found
    return Spec()


def say(text: str, _: object) -> None:
    typer.echo(text)


def rate_of(text: str | None) -> Rate | None:
    return None if text is None else Rate(parse_rate(text, "--rate"))


@app.command("ping")
@command
def ping_command(endpoint: EndpointArgument, operator: Operator) -> Shown[Delivery]:
    """Send a test message once, also to an endpoint that is paused or disabled."""
    hooks = Hooks(operator)
    made = hooks.run(hooks.acts.ping(endpoint, hooks.tenant(endpoint)))
    return Shown(
        made, partial(say, f"Ping {made.id} is on its way: holdfast webhook delivery {made.id}"), _json(made)
    )


@app.command("deliveries")
@command(looks=True)
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
    return Shown(found, _print_deliveries, {"deliveries": [_json(one) for one in found]})


def _json(found: Delivery) -> dict[str, Any]:
    attempts = [
        {**dataclasses.asdict(one), "took": one.took.total_seconds()} for one in found.attempts
    ]  # seconds
    return {**dataclasses.asdict(found), "attempts": attempts}


def _print_deliveries(found: Sequence[Delivery]) -> None:
    if not found:
        typer.echo("No deliveries.")
        return
    rows = [
        [
            render.job_id(d.id),
            render.ago(d.created_at),
            d.event_type,
            d.cause,
            d.status,
            str(d.tries),
            _last(d),
        ]
        for d in found
    ]
    heads = ("delivery", "when", "type", "cause", "status", "attempts", "last")
    render.print_table(heads, rows, ("attempts",), drop=("cause", "attempts", "type"))


def _last(found: Delivery) -> str:
    status = None if found.last_status is None else f"HTTP {found.last_status}"
    return render.one_line(found.reason or found.last_error or status) or "-"


@app.command("delivery")
@command(looks=True)
def delivery_command(delivery: DeliveryArgument, operator: Operator) -> Shown[Delivery]:
    """Show one delivery with its attempts."""
    hooks = Hooks(operator)
    found = hooks.run(hooks.acts.delivery(delivery, hooks.tenant_of_delivery(delivery)))
    return Shown(found, _print_delivery, _json(found))


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
    """Deliver an event again: with the same id, to the endpoint's current address and with its current secrets."""
    hooks = Hooks(operator, where)
    made = hooks.run(hooks.acts.redeliver(delivery, hooks.tenant_of_delivery(delivery)))
    return Shown(
        made, partial(say, f"Delivery {made.id} is pending: holdfast webhook delivery {made.id}"), _json(made)
    )


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
    """Deliver a range of the log again to one endpoint: what failed, what it never got, or all."""
    hooks = Hooks(operator, where)
    tenant = hooks.tenant(endpoint)
    ask = partial(
        hooks.acts.redeliver_range,
        endpoint,
        tenant,
        _place(begin, "--from"),
        None if end is None else _place(end, "--to"),
        only,  # type: ignore[arg-type]  # it is checked there
        rate_of(rate),
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
        partial(say, said),
        {"endpoint": endpoint, "dry_run": how.dry_run, **dataclasses.asdict(found)},
    )


def _place(text: str, option: str) -> int | datetime:
    if text.isascii() and text.isdigit():
        return int(text[:18])
    at = parse_moment(text, option)
    return at if isinstance(at, datetime) else datetime.now(UTC) - at
