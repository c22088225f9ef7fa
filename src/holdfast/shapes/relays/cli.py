"""`holdfast relays`: ask every destination whether it is well, before or while events are sent to it."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from holdfast.cli import render
from holdfast.cli.apps import AppOption, DatabaseOption, JsonOption, load_app, open_database
from holdfast.cli.busy import busy
from holdfast.errors import ConfigurationError
from holdfast.shapes.relays.declare import KIND
from holdfast.shapes.relays.link import CLOSING, said
from holdfast.shapes.relays.message import Template
from holdfast.shapes.relays.spec import Spec
from holdfast.transport import Health

app = typer.Typer(
    help="Ask the brokers that relays send to. Pause, reset, retry a relay: holdfast subscriptions.",
    no_args_is_help=True,
)
LOOKED_AT = 100  # of the newest events, for the destinations that they go to
TIMEOUT = 10.0  # seconds for one relay


@dataclass(frozen=True)
class Checked:
    relay: str
    ok: bool
    destinations: list[str]
    detail: str


@app.callback()
def _group() -> None:
    """One command, and still a group."""


@app.command("check")
def check_command(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One relay.", show_default="all")] = None,
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Connect to the broker of each relay in the app's code, and ask whether it takes what the newest events need."""
    code = load_app(app)
    relays: Mapping[str, Spec] = code.tasks.declared(KIND)
    if name is not None and name not in relays:
        known = ", ".join(sorted(relays)) or "none"
        raise ConfigurationError(f"the app has no relay {name!r} (known: {known})")
    wanted = {found: spec for found, spec in relays.items() if name in (None, found)}
    with busy("asking brokers", as_json=as_json):
        with open_database(database_url, app) as database:
            log = type(code.events)(database)
            places = {
                found: _destinations(log, code.tasks.declared("subscriptions")[found].patterns, spec)
                for found, spec in wanted.items()
            }
        checked = asyncio.run(_check_all(wanted, places))
    if as_json:
        render.print_json({"relays": checked})
    elif not checked:
        typer.echo("No relays. Declare one: app.relay(...)")
    else:
        rows = [
            [c.relay, "ok" if c.ok else "not ok", f"{len(c.destinations)}", render.one_line(c.detail) or "-"]
            for c in checked
        ]
        render.print_table(("relay", "state", "destinations", "detail"), rows, ("destinations",))
    if not all(c.ok for c in checked):
        raise typer.Exit(1)


def _destinations(log: Any, patterns: Sequence[str], spec: Spec) -> list[str]:
    """The destinations of a relay's newest events."""
    last = log.last_position()
    found: dict[str, None] = {}
    for event in log.read(max(last - LOOKED_AT, 0), LOOKED_AT, patterns):
        with contextlib.suppress(Exception):  # the relay itself records a route that fails
            route = spec.route
            found[route.of(event) if isinstance(route, Template) else route(event)] = None
    return list(found)


async def _check_all(relays: Mapping[str, Spec], places: Mapping[str, list[str]]) -> list[Checked]:
    checked = []
    for name, spec in relays.items():
        health = await _check(spec, places[name])
        checked.append(Checked(name, health.ok, places[name], health.detail))
    return checked


async def _check(spec: Spec, places: Sequence[str]) -> Health:
    try:
        async with asyncio.timeout(TIMEOUT):
            await spec.transport.open()
            return await spec.transport.check(places)
    except TimeoutError:
        return Health(False, f"no answer within {TIMEOUT:g} s")
    except Exception as error:  # noqa: BLE001 any error of a transport is its finding
        return Health(False, said(error))
    finally:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSING):
                await spec.transport.close()
