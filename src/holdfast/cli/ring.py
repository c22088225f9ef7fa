"""`holdfast ring`: which worker owns which keys of a queue."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated

import typer

from holdfast.cli import render
from holdfast.cli.arguments import parse_span
from holdfast.cli.command import Shown, command
from holdfast.cli.completion import complete_queue
from holdfast.errors import ConfigurationError
from holdfast.operate.operator import Operator
from holdfast.operate.ring import LAST, RingReport
from holdfast.store.ring import Affinity


@command(looks=True)
def ring_command(
    queue: Annotated[
        str | None,
        typer.Argument(
            metavar="[QUEUE]", help="Of this queue; else of all that have one.", autocompletion=complete_queue
        ),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Which worker owns this key.")] = None,
    buckets: Annotated[bool, typer.Option("--buckets", help="The buckets of each worker.")] = False,
    affinity: Annotated[
        bool, typer.Option("--affinity", help="How much of each key's work one worker did.")
    ] = False,
    last: Annotated[
        str | None, typer.Option("--last", metavar="SPAN", help="With --affinity: how far back; 5m.")
    ] = None,
    *,
    operator: Operator,
) -> Shown[list[RingReport]]:
    """Say which workers own which of the 1024 buckets of a queue with order or affinity by key."""
    if last is not None and not affinity:
        raise ConfigurationError("--last goes with --affinity: holdfast ring --affinity --last 5m")
    span = LAST if last is None else parse_span(last, "--last")
    found = operator.rings(queue, key=key)
    kept = operator.affinities(queue, last=span) if affinity else None
    answer = {"queues": found} | ({} if kept is None else {"affinity": kept})
    return Shown(found, partial(_print_all, buckets=buckets, kept=kept, span=span), answer)


def _print_all(
    found: list[RingReport], buckets: bool, kept: Mapping[str, Affinity] | None, span: float
) -> None:
    if not found:
        typer.echo(
            "No queue has order or affinity by key. Make one: holdfast queue create NAME --ordering key, or --affinity key"
        )
    for number, report in enumerate(found):
        if number:
            typer.echo("")
        _print(report, buckets)
        if kept is not None:
            _print_affinity(kept[report.queue], span)


def _print(report: RingReport, buckets: bool) -> None:
    count = len(report.workers)
    typer.echo(f"{report.queue}: {count} worker{'' if count == 1 else 's'}, {report.buckets} buckets")
    if report.workers:
        rows = [
            [f"{w.seat}", w.worker, w.host, f"{w.pid}", f"{w.buckets}", f"{w.share:.1%}"]
            for w in report.workers
        ]
        heads = ("seat", "worker", "host", "pid", "buckets", "share")
        render.print_table(heads, rows, ("seat", "pid", "buckets", "share"))
    if report.unserved:
        typer.echo(f"No worker owns {report.unserved} buckets. Start a worker of this queue.")
    if report.empty_seats:
        seats = ", ".join(map(str, report.empty_seats))
        typer.echo(
            f"Empty seats: {seats}. The next worker to start takes one, or the last workers move up soon."
        )
    if report.key is not None:
        who = f"owned by {report.key.worker}" if report.key.worker else "nobody's"
        typer.echo(f"Key {render.line(report.key.key)}: bucket {report.key.bucket}, {who}")
    if buckets:
        for worker in report.workers:
            spans = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in worker.ranges)
            typer.echo(f"Seat {worker.seat}: {spans or 'none'}")


def _print_affinity(found: Affinity, seconds: float) -> None:
    if found.share is None:
        typer.echo(f"Affinity: nothing was finished in the last {render.age(seconds)}.")
        return
    typer.echo(
        f"Affinity: {found.share:.2%} of {found.jobs:,} jobs of {found.keys:,} keys "
        f"ran where most of their key's jobs ran (last {render.age(seconds)})"
    )
    rows = [
        [render.one_line(k.key), f"{k.jobs:,}", f"{k.kept / k.jobs:.1%}", f"{k.workers}", k.worker]
        for k in found.worst
    ]
    if rows:
        heads = ("key", "jobs", "share", "workers", "mostly on")
        render.print_table(heads, rows, ("jobs", "share", "workers"))
