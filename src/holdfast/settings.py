"""Every setting, once: a frozen value read from arguments, the environment and holdfast.toml, in that order."""

import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from .errors import ConfigurationError, NoDatabase


@dataclass(frozen=True, slots=True)
class Settings:
    """Timings are seconds. A field `x` is read from HOLDFAST_X and from `x` in holdfast.toml."""

    database_url: str | None = None
    lease: float = 60.0  # how long a claim is good for without renewal, where the queue says nothing
    heartbeat: float = 3.0  # renewal and heartbeat, in their own thread
    dead_after: float = 10.0  # a worker not heard of for so long is fenced
    sweep: float = 2.0
    poll: float = 1.0  # longest pause of an idle worker
    concurrency: int = 10
    prefetch: int = 2  # jobs claimed beyond the free slots
    drain: float = 25.0  # how long a stopping worker lets handlers finish
    max_crashes: int = 3  # a job that killed its process so often is a dead letter
    pool_size: int = 10  # connections for handlers and producers
    connect_timeout: float = 10.0
    statement_timeout: float = 10.0

    def __post_init__(self) -> None:
        for field in fields(self):
            name = field.name
            if field.type is float and not 0 < getattr(self, name) < math.inf:
                raise ConfigurationError(f"{name} must be more than 0 seconds, not {getattr(self, name)!r}")
        least = {"prefetch": 0, "pool_size": 1, "max_crashes": 1}
        for name, lowest in least.items():
            if getattr(self, name) < lowest:
                raise ConfigurationError(f"{name} must be at least {lowest}, not {getattr(self, name)!r}")
        if self.concurrency < 1 or self.concurrency > 10_000:
            raise ConfigurationError(f"concurrency must be between 1 and 10000, not {self.concurrency!r}")
        if self.heartbeat * 2 > self.dead_after:
            raise ConfigurationError(
                f"dead_after ({self.dead_after:g} s) must be at least twice heartbeat ({self.heartbeat:g} s), "
                "or one late beat would fence a living worker"
            )
        if self.lease < self.dead_after + self.sweep:
            raise ConfigurationError(
                f"lease ({self.lease:g} s) must be at least dead_after + sweep ({self.dead_after + self.sweep:g} s), "
                "or it would run out before a dead worker is known to be dead"
            )


def _convert(name: str, kind: object, value: Any, source: str) -> Any:
    if kind not in (int, float):
        return str(value)
    try:
        number = float(value)
        if not math.isfinite(number) or isinstance(value, bool) or (kind is int and number != int(number)):
            raise ValueError
    except (TypeError, ValueError):
        wanted = "a whole number" if kind is int else "a number"
        raise ConfigurationError(f"{source}: {name} must be {wanted}, not {value!r}") from None
    return int(number) if kind is int else number


def load_settings(
    env: Mapping[str, str] | None = None, toml: Path | None = None, **arguments: Any
) -> Settings:
    """Arguments that are not None win over HOLDFAST_* variables, those over holdfast.toml, those over defaults."""
    env = os.environ if env is None else env
    known = {f.name: f.type for f in fields(Settings)}
    found: dict[str, Any] = {}
    file = toml or Path(env.get("HOLDFAST_CONFIG", "holdfast.toml"))
    if file.is_file():
        try:
            table = tomllib.loads(file.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{file} is not valid TOML: {error}") from None
        for name, value in table.items():
            if name not in known:
                raise ConfigurationError(f"{file}: unknown setting {name!r} (known: {', '.join(known)})")
            found[name] = _convert(name, known[name], value, str(file))
    for name, kind in known.items():
        variable = f"HOLDFAST_{name.upper()}"
        if variable in env:
            found[name] = _convert(variable, kind, env[variable], "environment")
    found.update({k: v for k, v in arguments.items() if v is not None})
    return replace(Settings(), **found)


def database_url(explicit: str | None, env: Mapping[str, str] | None = None) -> str:
    """The database to use: the explicit one, HOLDFAST_DATABASE_URL, DATABASE_URL, PG*; else an error that names the ways."""
    env = os.environ if env is None else env
    for url in (explicit, load_settings(env).database_url, env.get("DATABASE_URL")):
        if url:
            return url
    if any(env.get(v) for v in ("PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE")):
        return "postgresql://"
    raise NoDatabase
