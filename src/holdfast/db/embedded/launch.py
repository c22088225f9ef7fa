"""Make the data folder and start the server. Everything here runs under the start lock."""

import os
import platform
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import psycopg

from holdfast.db.embedded import postmaster
from holdfast.db.embedded.binaries import Binaries, every_binaries, find_binaries
from holdfast.db.embedded.copies import usable_by
from holdfast.db.embedded.locks import LockFile
from holdfast.db.embedded.owner import detach, owner_of, shell_as
from holdfast.db.embedded.place import ServerPaths, safe_folder
from holdfast.errors import EmbeddedError

START_SECONDS = 120.0
DYING_SECONDS = 30.0
SUPERUSER = "postgres"
PORT = 5432  # of the socket's name; nothing listens on it unless TCP is asked for
LOG_BYTES = 10_000_000
BUSY = "pre-existing shared memory block"
WRITE = 'umask 077; cat > "$1.new"; mv -f "$1.new" "$1"'
INITDB = """umask 077; cd "$1"; draft=$2; initdb=$3; shift 3; rm -rf data.new.* || :
"$initdb" -D "$PWD/$draft" "$@" >"$draft.log" 2>&1 || { tail -n 20 "$draft.log" >&2; exit 1; }
echo "include_if_exists = 'holdfast.conf'" >> "$draft/postgresql.conf" """


@dataclass(frozen=True)
class EmbeddedOptions:
    """How to run the embedded server. The first user's options apply while it runs."""

    durable: bool = True  # False: no fsync, for tests; a power cut may lose everything
    binaries: Path | None = None
    tcp: bool = False  # also on 127.0.0.1, with a random password
    settings: Mapping[str, str] = field(default_factory=dict)  # for postgresql.conf


def ensure_started(place: ServerPaths, options: EmbeddedOptions, others: Callable[[], bool]) -> None:
    """Have the server run. `others` says whether another process uses it."""
    running = postmaster.find(place.data)
    if running and await_ready(place, running.pid) and _stays(place, running.pid):
        _make_durable(place, options)
    elif _is_foreign(place) and others():
        # The pid file speaks of another container or machine, where somebody uses this folder now: that
        # server cannot be seen from here, so its pid file must not be removed. Use it if it answers.
        if not answers(place):
            raise EmbeddedError(
                f"Another machine or container uses the embedded server in {place.home}, and it does not "
                "answer here. Stop it there, or use a PostgreSQL server that both can reach."
            )
    else:
        _start(place, options)
    if options.tcp:
        _open_tcp(place)


def connection_url(place: ServerPaths, database: str) -> str:
    """For libpq and everything that reads its URLs, over the socket."""
    said = postmaster.read_pid_file(place.data)
    folder, port = (
        (said.socket or str(place.socket), said.port or PORT) if said else (str(place.socket), PORT)
    )
    return f"postgresql://{SUPERUSER}@/{quote(database, safe='')}?host={quote(folder, safe='')}&port={port}"


def answers(place: ServerPaths) -> bool:
    """Also true of a server that has no connection left."""
    url = f"{connection_url(place, 'postgres')}&connect_timeout=3"
    return psycopg.pq.PGconn.ping(url.encode()) == psycopg.pq.Ping.OK


def _stays(place: ServerPaths, pid: int) -> bool:
    """A server that was killed a moment ago can still look alive: believe it when it answers."""
    deadline = time.monotonic() + DYING_SECONDS
    while not answers(place):
        if postmaster.gone(pid):
            return False
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"The embedded server in {place.home} (process {pid}) runs and does not answer. "
                f"Its log {place.log} ends:\n{log_tail(place)}"
            )
        time.sleep(0.01)
    return True


def await_ready(place: ServerPaths, pid: int) -> bool:
    """Wait for a started server to accept connections; False if it ended instead."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        said = postmaster.read_pid_file(place.data)
        if said and said.pid == pid and said.status == "ready":
            return True
        if postmaster.gone(pid):
            return False
        time.sleep(0.01)
    raise EmbeddedError(
        f"The embedded server in {place.home} did not become ready in {START_SECONDS:.0f} seconds; "
        f"it keeps trying. Its log {place.log} ends:\n{log_tail(place)}"
    )


def log_tail(place: ServerPaths, start: int = 0) -> str:
    try:
        with place.log.open("rb") as log:
            log.seek(max(start, log.seek(0, os.SEEK_END) - 4000))
            lines = log.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-20:])


def _start(place: ServerPaths, options: EmbeddedOptions) -> None:
    binaries = find_binaries(options.binaries)
    if not place.data.exists():
        binaries = usable_by(place.owner, binaries)
        _make_data(place, binaries, options)
    else:
        _check_version(place, binaries)
        binaries = usable_by(place.owner, binaries)
    _write_settings(place, binaries, options)
    folder = place.socket
    if folder.parent != place.area:
        safe_folder(folder, place.owner)
    port = _free_port() if options.tcp else PORT
    argv: list[str | Path] = [binaries.bin / "postgres", "-D", place.data]
    for name, value in {
        "listen_addresses": "127.0.0.1" if options.tcp else "",
        "unix_socket_directories": f'"{folder}"',
        "unix_socket_permissions": "0700",
        "port": str(port),
    }.items():
        argv += ["-c", f"{name}={value}"]
    deadline = time.monotonic() + START_SECONDS
    while not _try_start(place, argv):
        if time.monotonic() > deadline:
            raise EmbeddedError(f"Processes of a killed server still hold {place.data}; see {place.log}")
        for pid in postmaster.leftovers(place.data):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGQUIT)
        time.sleep(0.1)


def _try_start(place: ServerPaths, argv: list[str | Path]) -> bool:
    """False when processes of a killed server have not ended yet."""
    script = 'umask 077; cd "$1"; rm -rf data.new.* || :; rm -f data/postmaster.pid; '
    script += 'mkdir -p socket; rm -f "$2"/.s.PGSQL.*; cat > host.new; mv -f host.new host'
    if place.log.exists() and place.log.stat().st_size > LOG_BYTES:
        script += "; mv -f log log.1"
    shell_as(place.owner, script, place.area, place.socket, text=host_identity())
    size = place.log.stat().st_size if place.log.exists() else 0
    pid = detach(place.owner, argv, place.log)
    if await_ready(place, pid):
        return True
    said = log_tail(place, size)
    if BUSY in said:
        return False
    raise EmbeddedError(
        f"The embedded server in {place.home} did not start. Its log {place.log} ends:\n{said}"
    )


def _make_data(place: ServerPaths, binaries: Binaries, options: EmbeddedOptions) -> None:
    """initdb under another name, then rename: killed half way it leaves no half data folder.

    An initdb whose parent was killed continues. It writes under a separate name and does not rename, so
    it cannot harm the next one.
    """
    words = [f"--username={SUPERUSER}", "--encoding=UTF8", "--locale=C", "--data-checksums"]
    words += ["--auth-local=trust", "--auth-host=scram-sha-256"]
    if binaries.version >= 17:
        words += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    if not options.durable:
        words.append("--no-sync")
    draft = f"data.new.{secrets.token_hex(4)}"
    shell_as(place.owner, INITDB, place.area, draft, binaries.bin / "initdb", *words)
    shell_as(place.owner, 'cd "$1"; [ ! -e data ]; mv "$2" data', place.area, draft)


def _check_version(place: ServerPaths, binaries: Binaries) -> None:
    version = data_version(place)
    if version == binaries.version:
        return
    fitting = next((str(found.bin) for found in every_binaries() if found.version == version), None)
    raise EmbeddedError(
        f"The data in {place.data} is of PostgreSQL {version}, the programs in {binaries.bin} are of "
        f"{binaries.version}. Use the old ones to move it: "
        f"HOLDFAST_PG_BIN={fitting or f'<bin folder of {version}>'} "
        "holdfast db dump > dump.sql, then holdfast db reset, then holdfast db psql < dump.sql"
    )


def data_version(place: ServerPaths) -> int:
    try:
        return int((place.data / "PG_VERSION").read_text())
    except (OSError, ValueError):
        raise EmbeddedError(
            f"{place.data} is not a PostgreSQL data folder. Remove it: holdfast db reset"
        ) from None


def _write_settings(place: ServerPaths, binaries: Binaries, options: EmbeddedOptions) -> None:
    durable = "on" if options.durable else "off"
    settings = {
        "max_connections": "200",
        "shared_buffers": "64MB",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "fsync": durable,
        "synchronous_commit": durable,
        "full_page_writes": durable,
    }
    folders = (binaries.bin.parent / "lib", binaries.bin.parent / "lib" / "postgresql")
    if any(list(folder.glob("pg_stat_statements.*")) for folder in folders):
        settings["shared_preload_libraries"] = "pg_stat_statements"
    settings.update(options.settings)
    _write_conf(place, settings)


def _write_conf(place: ServerPaths, settings: Mapping[str, str]) -> None:
    lines = ["# Written at every start. Your own settings: ALTER SYSTEM, or EmbeddedOptions(settings=...)"]
    for name, value in settings.items():
        escaped = value.replace("\\", "\\\\").replace("'", "''")
        lines.append(f"{name} = '{escaped}'")
    shell_as(place.owner, WRITE, place.data / "holdfast.conf", text="\n".join([*lines, ""]))


def _make_durable(place: ServerPaths, options: EmbeddedOptions) -> None:
    """A server started for tests must not silently serve a user who relies on the disk."""
    conf = place.data / "holdfast.conf"
    text = conf.read_text() if conf.exists() else ""
    running = postmaster.find(place.data)
    if options.durable and running and "\nfsync = 'off'" in text:
        for name in ("fsync", "synchronous_commit", "full_page_writes"):
            text = text.replace(f"\n{name} = 'off'", f"\n{name} = 'on'")
        shell_as(place.owner, WRITE, conf, text=text)
        os.sync()
        os.kill(running.pid, signal.SIGHUP)


def host_identity() -> str:
    """Differs between machines, boots, and containers that do not see each other's processes."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _is_foreign(place: ServerPaths) -> bool:
    if not (place.data / "postmaster.pid").exists():
        return False
    with suppress(OSError):
        return (place.area / "host").read_text() != host_identity()
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _open_tcp(place: ServerPaths) -> None:
    said = postmaster.read_pid_file(place.data)
    if not said or said.listen != "127.0.0.1":
        raise EmbeddedError(
            f"The embedded server in {place.home} runs without TCP. Stop it first: holdfast db stop"
        )
    if place.password.exists():
        return
    word = secrets.token_urlsafe(24)  # letters, digits, - and _ only, so it can stand in quotes as it is
    with psycopg.connect(connection_url(place, "postgres"), autocommit=True) as connection:
        connection.execute(f"ALTER ROLE {SUPERUSER} PASSWORD '{word}'".encode())
    shell_as(place.owner, WRITE, place.password, text=word)


def ensure_watcher(place: ServerPaths) -> None:
    """Start a process that stops the server when its last user was killed. Best effort: a safety net only."""
    if not Path(sys.executable or "").name.startswith(("python", "pypy")):
        return
    lock = LockFile(place.area / postmaster.WATCHER)
    free = lock.exclusive()
    lock.close()
    if free:
        with suppress(EmbeddedError):
            argv: list[str | Path] = [sys.executable, "-I", "-S", postmaster.__file__, place.area]
            detach(owner_of(os.geteuid()), argv, Path(os.devnull))
