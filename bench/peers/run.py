"""Run the peers: a fresh database for each run on the server that is measured, the adapter as a child process.

A peer that cannot be installed or run is reported with the reason, and the others go on.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlencode
from uuid import uuid4

import psycopg
from psycopg import sql

from .install import PeerFailed, clean_environment, command, last_words
from .table import PEERS, Mode, Peer

RUN_SECONDS = 900.0
LATENCY_JOBS = 250  # at 50 jobs/s: five seconds
FEWEST = 100
Measure = Literal["drain", "latency_p50", "latency_p99"]
_WANTED: dict[Mode, tuple[str, ...]] = {  # what an adapter reports
    "drain": ("seconds",),
    "latency": ("p50", "p99"),
    "workflow": ("seconds", "p50"),
}


@dataclass
class PeerResult:
    """Figures of one peer, one per run. With an error there may be fewer than were asked for, or none."""

    peer: str
    version: str
    language: str
    measure: Measure
    unit: str
    values: list[float]
    settings: str
    error: str | None = None
    cpu: list[float] = field(
        default_factory=list
    )  # of the worker's process, microseconds per job; drain only

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(
    dsn_admin: str,
    jobs: int,
    repeats: int,
    names: Sequence[str],
    folder: Path,
    *,
    modes: Sequence[Mode] = ("drain", "latency"),
    table: Mapping[str, Peer] = PEERS,
) -> Iterator[PeerResult]:
    """Results of each peer as soon as it is done. `jobs` is for the fastest; the others get their share of it."""
    unknown = [name for name in names if name not in table]
    if unknown:
        raise ValueError(f"No such peer: {', '.join(unknown)}. There are: {', '.join(table)}.")
    for name in names or table:
        yield from _measure_peer(dsn_admin, table[name], jobs, repeats, folder, modes)


def _measure_peer(
    dsn_admin: str, peer: Peer, jobs: int, repeats: int, folder: Path, modes: Sequence[Mode]
) -> Iterator[PeerResult]:
    try:
        command(peer, folder.resolve())
        broken = None
    except PeerFailed as failed:
        broken = str(failed)
    for mode in modes:
        samples: list[dict[str, Any]] = []
        error = broken
        count = job_count(peer, jobs) if mode == "drain" else LATENCY_JOBS
        while error is None and len(samples) < repeats:
            try:
                samples.append(once(dsn_admin, peer, mode, count, folder))
            except PeerFailed as failed:
                error = f"run {len(samples) + 1} of {repeats}: {failed}" if samples else str(failed)
        yield from _results(peer, mode, samples, error)


def _results(
    peer: Peer, mode: Mode, samples: Sequence[Mapping[str, Any]], error: str | None
) -> Iterator[PeerResult]:
    who = (peer.name, peer.version, peer.language)
    settings = describe(peer, mode, samples)
    if mode == "drain":
        rates = [sample["jobs"] / sample["seconds"] for sample in samples]
        cpu = [sample["cpu"] / sample["jobs"] * 1e6 for sample in samples]
        yield PeerResult(*who, "drain", "jobs/s", rates, settings, error, cpu)
    else:
        yield PeerResult(*who, "latency_p50", "ms", [sample["p50"] for sample in samples], settings, error)
        yield PeerResult(*who, "latency_p99", "ms", [sample["p99"] for sample in samples], settings, error)


def job_count(peer: Peer, jobs: int) -> int:
    return max(FEWEST, round(jobs * peer.share))


def once(dsn_admin: str, peer: Peer, mode: Mode, jobs: int, folder: Path) -> dict[str, Any]:
    """One run: what the adapter found. For those who want to alternate peers with something else."""
    start = command(peer, folder.resolve())
    with fresh_database(dsn_admin, peer.name) as url:
        argv = [*start, mode, url, str(jobs), json.dumps(peer.settings(mode))]
        try:
            done = subprocess.run(
                argv,
                env=clean_environment(),
                capture_output=True,
                text=True,
                timeout=RUN_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise PeerFailed(f"{mode} did not end in {RUN_SECONDS:.0f} s") from error
        except OSError as error:
            raise PeerFailed(f"{mode} cannot be started: {error}") from error
    if done.returncode:
        raise PeerFailed(f"{mode} failed: {last_words(done.stderr or done.stdout)}")
    return _read(done.stdout, mode, jobs)


def _read(said: str, mode: Mode, jobs: int) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
        complete = found["jobs"] == jobs and all(found[name] > 0 for name in _WANTED[mode])
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise PeerFailed(f"{mode} gave no figures: {last_words(said)}") from error
    if not complete:
        raise PeerFailed(f"{mode} is not complete: {last_words(said)}")
    return found


def describe(peer: Peer, mode: Mode, samples: Sequence[Mapping[str, Any]]) -> str:
    parts = [f"{name}={value}" for name, value in _flat(peer.settings(mode))]
    parts += sorted({f"node={sample['node']}" for sample in samples if "node" in sample})
    if mode != "latency":
        parts += sorted({f"jobs={sample['jobs']}" for sample in samples})
    return " ".join(parts)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@contextmanager
def fresh_database(dsn_admin: str, label: str) -> Iterator[str]:
    """A new database, and the URL for it that every peer's driver understands. Dropped at the end."""
    name = f"holdfast_peer_{label.replace('-', '_')}_{uuid4().hex[:8]}"
    with psycopg.connect(dsn_admin, autocommit=True) as connection:
        url = _url(connection.info, name)
        connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        try:
            yield url
        finally:
            connection.execute(
                sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
            )


def _url(info: psycopg.ConnectionInfo, database: str) -> str:
    """Over a socket, everything stands in the query: not every parser takes a user without a host before it."""
    if info.host.startswith(("/", "@")):
        query = {"host": info.host, "port": str(info.port), "user": info.user}
        if info.password:
            query["password"] = info.password
        return f"postgresql:///{quote(database)}?{urlencode(query)}"
    user = quote(info.user, safe="") + (f":{quote(info.password, safe='')}" if info.password else "")
    mode = info.get_parameters().get("sslmode")
    return f"postgresql://{user}@{info.host}:{info.port}/{quote(database)}" + (
        f"?sslmode={mode}" if mode else ""
    )
