"""`workflow-peers`: DBOS and Absurd on the same server, in turns with ours, each through its public API (peers.workflows).

Ours is measured by an adapter of its own, the way the others are: so it differs a little from `workflow`. A peer that cannot
be installed or run is told and left out.
"""

from holdfast.bench.context import Bench
from holdfast.errors import ConfigurationError

from . import scenario
from .peers import Peer, PeerFailed, once
from .peers.run import describe
from .peers.workflows import IN_FLIGHT, STEPS, others, own, run_count

NAME = "workflow-peers"


def run(bench: Bench) -> None:
    for in_flight in IN_FLIGHT:
        if bench.wants(f"in-flight-{in_flight}"):
            for peer in [own(in_flight), *chosen(in_flight)]:
                if peer.name not in scenario.told(bench, "left_out", NAME):
                    one(bench, peer, in_flight)


def chosen(in_flight: int) -> list[Peer]:
    """Those that were asked for by name and have workflows; all of them where none was."""
    known = others(in_flight)
    names = [name for name in scenario.chosen_names if name in known]
    if scenario.chosen_names and not names:
        raise ConfigurationError(f"none of the peers that were chosen has workflows; {', '.join(known)} have")
    return [peer for name, peer in known.items() if not names or name in names]


def one(bench: Bench, peer: Peer, in_flight: int) -> None:
    runs = run_count(peer, in_flight, bench.sizes.runs)
    try:
        found = once(bench.server.admin, peer, "workflow", runs, scenario.folder())
    except PeerFailed as failed:
        scenario.told(bench, "left_out", NAME)[peer.name] = str(failed)
        bench.say(f"{NAME} {peer.name} is left out: {failed}")
        return
    name = f"{peer.name} in-flight-{in_flight}"
    settings = f"{peer.version}: {describe(peer, 'workflow', [found])}"
    scenario.told(bench, "settings", NAME)[name] = settings
    rate, cpu = found["jobs"] * STEPS / found["seconds"], found["cpu"] / found["jobs"] * 1e6
    bench.add(NAME, name, "steps/s", rate)
    bench.add(NAME, f"{name} p50", "ms", found["p50"])
    bench.add(NAME, f"{name} worker CPU", "us/run", cpu)
    bench.say(f"{NAME} {name}: {rate:,.0f} steps/s, p50 {found['p50']:.1f} ms")
