"""Worker processes below this one: the same command again, once per process, linked to this one."""

import os
from collections.abc import Sequence

import typer

from holdfast.app import Holdfast
from holdfast.cli.logs import LogFormat
from holdfast.cli.serving import Work, announce
from holdfast.errors import ConfigurationError
from holdfast.runtime.processes.origin import python
from holdfast.runtime.supervisor import Supervisor


def how_many(wanted: int) -> int:
    """0: one per processor that this process may use."""
    if wanted > 0:
        return wanted
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def supervise(app: Holdfast, work: Work, log_format: LogFormat, processes: int, words: Sequence[str]) -> None:
    """Run `processes` workers, each as `holdfast worker` with these words, until they have left."""
    health = _open_ports(work.address(app.settings), processes)
    announce(app, work, log_format, processes)

    def command(place: int, supervisor_fd: int) -> list[str]:
        own = ["--health-fd", str(health[place])] if health else []
        return [*python("holdfast"), "worker", *words, *own, "--supervisor-fd", str(supervisor_fd)]

    app.close()  # the children have connections of their own
    ending = Supervisor(command, processes, drain=app.settings.drain, inherited=health).run()
    if ending.message:
        typer.echo(f"holdfast: {ending.message}", err=True)
    if ending.code:
        raise typer.Exit(ending.code)


def _open_ports(address: tuple[str, int] | None, processes: int) -> dict[int, int]:
    """One port for each place, open from now on: a child that is replaced hands it on to its successor."""
    if address is None:
        return {}
    from holdfast.observe.server import listen

    host, first = address
    if first and first + processes - 1 > 65535:
        raise ConfigurationError(
            f"health port {first} with {processes} processes would go up to {first + processes - 1}; ports end at 65535. "
            "Choose a lower one, or 0 for any free ones"
        )
    ports = [first + place if first else 0 for place in range(processes)]
    return {place: listen(host, port).detach() for place, port in enumerate(ports)}
