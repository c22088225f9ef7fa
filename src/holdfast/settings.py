"""Every setting, once: a frozen value read from arguments, the environment and holdfast.toml, in that order."""

import contextlib
import getpass
import math
import os
import socket
import stat
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from .errors import ConfigurationError, NoDatabase
from .model.duration import Duration, parse_duration, seconds
from .model.labels import parse_labels
from .model.text import storable


@dataclass(frozen=True, slots=True)
class Settings:
    """Timings are seconds, or text such as "1m30s". A field `x` is read from HOLDFAST_X and from `x` in holdfast.toml."""

    database_url: str | None = None
    app: str | None = None  # MODULE:APP that commands mean when none is given
    lease: float = 60.0  # how long a claim is good for without renewal, where the queue says nothing
    heartbeat: float = 3.0  # renewal and heartbeat, in their own thread
    dead_after: float = 10.0  # a worker not heard of for so long is fenced
    sweep: float = 2.0
    poll: float = 1.0  # longest pause of an idle worker
    ring: float = 1.0  # between two checks of which workers serve an ordered queue
    takeover: float = 5.0  # a due key that its worker does not take for this long may be taken by any other
    notify: bool = True  # idle workers listen, and producers wake them
    listen_url: str | None = (
        None  # where a worker listens, when not at database_url: a pooler may not pass it on
    )
    concurrency: int = 10
    prefetch: int = 2  # jobs claimed beyond the free slots
    drain: float = 25.0  # how long a stopping worker lets handlers finish
    max_crashes: int = 3  # a job whose process died this often is a dead letter
    pool_size: int = 10  # connections for handlers and producers
    connect_timeout: float = 10.0
    statement_timeout: float = 10.0
    process_jobs: int = 1000  # a child process is replaced after that many jobs
    processes: int = 1  # worker processes of `holdfast worker`; 0: one per processor
    schedule_grace: float = 60.0  # a slot of a schedule that is later than this was missed
    health_port: int | None = None  # probes and metrics of a worker; 0: any free port
    health_host: str = "127.0.0.1"
    live_after: float = 60.0  # a claim loop without a turn for this long is not alive
    metrics_snapshot: float = 15.0  # least time between two queries of the database for the metrics
    claim_bytes: int = 4 * 2**20  # of payloads in one claim, and that wait in a worker; one job always
    release: str | None = None  # of the application, where Holdfast(release=...) does not say it
    labels: str | None = None  # of a worker: "zone=a,team=mail"
    misfit_wait: float = 600.0  # a payload that every live signature refused is a dead letter after this time

    def __post_init__(self) -> None:
        for field in fields(self):
            name = field.name
            if field.type is float and isinstance(getattr(self, name), str | timedelta):
                object.__setattr__(self, name, _seconds(name, getattr(self, name)))
            if field.type is float and not 0 < getattr(self, name) < math.inf:
                raise ConfigurationError(f"{name} must be more than 0 seconds, not {getattr(self, name)!r}")
        least = {
            "prefetch": 0,
            "pool_size": 1,
            "max_crashes": 1,
            "process_jobs": 1,
            "processes": 0,
            "claim_bytes": 1,
        }
        for name, lowest in least.items():
            if getattr(self, name) < lowest:
                raise ConfigurationError(f"{name} must be at least {lowest}, not {getattr(self, name)!r}")
        if self.health_port is not None and not 0 <= self.health_port <= 65535:
            raise ConfigurationError(f"health_port must be between 0 and 65535, not {self.health_port!r}")
        parse_labels(self.labels or "")
        if self.concurrency < 1 or self.concurrency > 10_000:
            raise ConfigurationError(f"concurrency must be between 1 and 10000, not {self.concurrency!r}")
        if self.heartbeat * 2 > self.dead_after:
            raise ConfigurationError(
                f"dead_after ({self.dead_after:g} s) must be at least twice heartbeat ({self.heartbeat:g} s), "
                "or one late beat would fence a live worker"
            )
        if self.lease < self.dead_after + self.sweep:
            raise ConfigurationError(
                f"lease ({self.lease:g} s) must be at least dead_after + sweep ({self.dead_after + self.sweep:g} s), "
                "or it would run out before a dead worker is known to be dead"
            )


def _seconds(name: str, value: Duration) -> float:
    try:
        return seconds(value, name)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(str(error)) from None


def _convert(name: str, kind: object, value: Any, source: str) -> Any:
    if kind == int | None:
        if str(value).lower() in ("", "none"):
            return None
        kind = int
    if kind is bool:
        words = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}
        if str(value).lower() not in words:
            raise ConfigurationError(f"{source}: {name} must be true or false, not {value!r}")
        return words[str(value).lower()]
    if kind not in (int, float):
        return str(value)
    try:
        text = parse_duration(value) if kind is float and isinstance(value, str) else None
        number = float(value) if text is None else text
        if not math.isfinite(number) or isinstance(value, bool) or (kind is int and number != int(number)):
            raise ValueError
    except (TypeError, ValueError):
        wanted = "a whole number" if kind is int else "seconds or a duration like 90s"
        raise ConfigurationError(f"{source}: {name} must be {wanted}, not {value!r}") from None
    return int(number) if kind is int else number


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    value: Any
    source: str  # 'argument', the variable, the file, or 'default'


_FILE = "holdfast.toml"
# What else is read from the environment, besides a variable per setting.
OTHER_VARIABLES = (
    "HOLDFAST_ACTOR",
    "HOLDFAST_BENCH_DIR",
    "HOLDFAST_CONFIG",
    "HOLDFAST_FAILPOINTS",
    "HOLDFAST_HOME",
    "HOLDFAST_PG_BIN",
    "HOLDFAST_SECRET_KEYS",
    "HOLDFAST_TEST_DATABASE_URL",
    "HOLDFAST_TEST_PG_BIN",
    "HOLDFAST_WEB_DATABASES",
)
_OTHERS = (
    "_HOST",
    "_PORT",
    "_TCP",
    "_PROTO",
    "_ADDR",
    "_USER",
)  # Kubernetes sets the first five for a Service


def settings_file(env: Mapping[str, str] | None = None) -> Path:
    """The file that HOLDFAST_CONFIG names; else holdfast.toml of this folder, or of the nearest one above that has one
    which no other user can have put there. It need not exist."""
    if named := (os.environ if env is None else env).get("HOLDFAST_CONFIG"):
        return Path(named)
    here = Path(_FILE)
    return here if here.is_file() else next((file for file in _above() if distrust(file) is None), here)


def _above() -> Iterator[Path]:
    with contextlib.suppress(OSError):  # the working folder is gone
        yield from (folder / _FILE for folder in Path.cwd().parents)


def distrust(file: Path) -> str | None:
    """Why another user may have put this file there, or code beside it; None: only this user or root can have."""
    try:
        found, folder = file.lstat(), file.absolute().parent
        if not stat.S_ISREG(found.st_mode):
            return "it is a link, or no regular file"
        return _exposed(file, found) or exposed(folder)
    except OSError as error:
        return f"it cannot be looked at: {error.strerror}"


def exposed(folder: Path) -> str | None:
    """Why others may have put code into this folder."""
    return _exposed(folder, folder.stat())


def _exposed(path: Path, found: os.stat_result) -> str | None:
    if found.st_uid not in (0, os.getuid()):
        return f"{path} belongs to another user"
    private = found.st_gid == os.getgid() == os.getuid()  # a group of this user alone, as umask 002 has it
    others = stat.S_IWOTH if private else stat.S_IWOTH | stat.S_IWGRP
    return f"others may write to {path} (chmod go-w)" if found.st_mode & others else None


def ignored_file(env: Mapping[str, str] | None = None) -> str | None:
    """What is ignored in the nearest holdfast.toml because another user may have put it there, and what to do; None:
    nothing is. In the working folder that is the app, in a folder above the whole file."""
    if (os.environ if env is None else env).get("HOLDFAST_CONFIG"):
        return None
    here = Path(_FILE)
    file = next((one for one in (here, *_above()) if os.path.isfile(one)), None)
    if file is None or (why := distrust(file)) is None or (file == here and "app" not in _table(file)):
        return None
    what = f"app in {file}" if file == here else f"{file}"
    return f"{what} is not used: {why}. If you trust it: export HOLDFAST_CONFIG={file.absolute()}"


def _table(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} is not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from None


def load_settings(
    env: Mapping[str, str] | None = None, toml: Path | None = None, **arguments: Any
) -> Settings:
    """Arguments that are not None win over HOLDFAST_* variables, those over holdfast.toml, those over defaults."""
    return replace(Settings(), **{s.name: s.value for s in _given(env, toml, arguments).values()})


def describe_settings(
    env: Mapping[str, str] | None = None, toml: Path | None = None, **arguments: Any
) -> list[Setting]:
    """Every setting as load_settings() finds it, and where it comes from."""
    given = _given(env, toml, arguments)
    settings = replace(Settings(), **{s.name: s.value for s in given.values()})
    return [
        given.get(f.name, Setting(f.name, getattr(settings, f.name), "default")) for f in fields(Settings)
    ]


def _given(
    env: Mapping[str, str] | None, toml: Path | None, arguments: Mapping[str, Any]
) -> dict[str, Setting]:
    """The settings that differ from their default, by name."""
    env = os.environ if env is None else env
    known = {f.name: f.type for f in fields(Settings)}
    found: dict[str, Setting] = {}
    file = toml or settings_file(env)
    if file.is_file():
        named = toml or env.get("HOLDFAST_CONFIG")  # by the user, who knows it
        for name, value in _table(file).items():
            if name not in known:
                raise ConfigurationError(f"{file}: {unknown_setting(name, known)}")
            if name == "app" and not named and distrust(file):
                continue
            text = _beside(file, value) if name == "database_url" else value
            found[name] = Setting(name, _convert(name, known[name], text, str(file)), str(file))
    for name, kind in known.items():
        variable = f"HOLDFAST_{name.upper()}"
        if variable in env:
            found[name] = Setting(name, _convert(variable, kind, env[variable], "environment"), variable)
    found.update({k: Setting(k, v, "argument") for k, v in arguments.items() if v is not None})
    return found


def _beside(file: Path, url: Any) -> Any:
    """embedded:folder is below the folder of its file, wherever a command is called."""
    folder = str(url).removeprefix("embedded:")
    away = file.is_absolute() and str(url).startswith("embedded:") and folder and not folder.startswith("/")
    return f"embedded://{file.parent / folder}" if away else url


def database_url(explicit: str | None, env: Mapping[str, str] | None = None) -> str:
    """The database to use: the explicit one, HOLDFAST_DATABASE_URL, DATABASE_URL, PG*; else an error that names the ways."""
    if explicit:
        return explicit
    found = describe_database(env)
    if found is None:
        raise NoDatabase
    return str(found.value)


def describe_database(env: Mapping[str, str] | None = None) -> Setting | None:
    """The database that the environment and the file name, and which of them names it; None: neither."""
    env = os.environ if env is None else env
    own = next(s for s in describe_settings(env) if s.name == "database_url")
    if own.value:
        return own
    if url := env.get("DATABASE_URL"):
        return Setting("database_url", url, "DATABASE_URL")
    named = [v for v in ("PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE") if env.get(v)]
    return Setting("database_url", "postgresql://", ", ".join(named)) if named else None


def default_actor() -> str:
    """HOLDFAST_ACTOR, else the system's user and host: the actor of a surface that knows no other. That is the command
    line, and Python: `app.schedules`, subscriptions, contracts and webhooks. `operate` has no default: it is passed one."""
    if named := os.environ.get("HOLDFAST_ACTOR"):
        return storable(named, 200)
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        user = str(os.getuid())
    return storable(f"{user}@{socket.gethostname()}", 200)


def unknown_variables(env: Mapping[str, str] | None = None) -> list[str]:
    """HOLDFAST_* variables that are not known: most likely typing mistakes."""
    known = {*OTHER_VARIABLES, *known_variables()}
    return sorted(
        v for v in (os.environ if env is None else env) if v.startswith("HOLDFAST_") and v not in known
    )


def known_variables() -> list[str]:
    """The variable of each setting."""
    return [f"HOLDFAST_{f.name.upper()}" for f in fields(Settings)]


def misspelled_variables(env: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
    """Unknown HOLDFAST_* variables whose name is nearly a known one, and that one. All others may be the user's own."""
    return [
        (name, close)
        for name in unknown_variables(env)
        if not name.endswith(_OTHERS) and (close := nearest_variable(name, 0.78))
    ]


def nearest_variable(name: str, cutoff: float = 0.6) -> str | None:
    """The known variable with the most similar name."""
    known = [one.removeprefix("HOLDFAST_") for one in (*known_variables(), *OTHER_VARIABLES)]
    near = _nearest(name.removeprefix("HOLDFAST_"), known, cutoff)
    return f"HOLDFAST_{near}" if near else None


def unknown_setting(name: str, known: Collection[str]) -> str:
    near = _nearest(name, known)
    return f"unknown setting {name!r}.{f' Did you mean {near!r}?' if near else ''} Known: {', '.join(known)}"


def _nearest(name: str, known: Collection[str], cutoff: float = 0.6) -> str | None:
    from difflib import get_close_matches  # seldom needed

    return next(iter(get_close_matches(name, known, 1, cutoff)), None)
