"""`holdfast keys limit` and `keys limits`: keys with a number of their own."""

from typing import Annotated

import typer

from holdfast.cli import render
from holdfast.cli.command import Shown, command
from holdfast.cli.filters import LimitOption
from holdfast.cli.keys import AnyQueueArgument, KeysArgument, QueueArgument, app
from holdfast.cli.limits import NONE, whole
from holdfast.operate.key_limits import LimitedKeys
from holdfast.operate.operator import Operator

__all__ = ["app"]


@app.command("limit")
@command
def limit_command(
    queue: QueueArgument,
    keys: KeysArgument,
    operator: Operator,
    concurrency: Annotated[
        str,
        typer.Option(
            metavar="N", help="Jobs of the key that run at once; none: the same as for any other key."
        ),
    ],
) -> Shown[LimitedKeys]:
    """Give keys their own limit, over all workers, in place of the queue's --key-concurrency.

    It counts from the next claim on. What runs already finishes.
    """
    wanted = None if concurrency == NONE else whole(concurrency, "concurrency")
    done = operator.limit_keys(queue, keys, concurrency=wanted)
    return Shown(done, lambda found: _print(found, "They run as many as any other key."))


@app.command("limits")
@command(looks=True)
def limits_command(
    operator: Operator, queue: AnyQueueArgument = None, limit: LimitOption = 50
) -> Shown[LimitedKeys]:
    """List the keys that have their own limit."""
    found = operator.limited_keys(queue, limit=limit)
    return Shown(found, lambda found: _print(found, "No key has its own limit."))


def _print(found: LimitedKeys, none: str) -> None:
    if not found.keys:
        typer.echo(none)
        return
    rows = [[rule.queue, render.line(rule.key), f"{rule.concurrency:,}"] for rule in found.keys]
    render.print_table(("queue", "key", "at once"), rows, ("at once",))
    if found.more:
        typer.echo("There are more: --limit shows up to 1000.")
