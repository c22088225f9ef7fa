"""The system user that runs the server, and running programs as that user.

PostgreSQL refuses to run as root, so root runs the server as another user: the owner of the folder, else
`postgres`, else `nobody`. No user is created and no other user's folder is opened up. As root, every file
below the server's folder is written by a program that runs as that user, never by root: the folder belongs to
somebody who could put a symbolic link where root is about to write.
"""

import os
import pwd
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import EmbeddedError

DETACH = 'umask 077; log=$1; shift; "$@" </dev/null >>"$log" 2>&1 & echo $!'


@dataclass(frozen=True)
class Owner:
    uid: int
    gid: int
    name: str

    @property
    def other(self) -> bool:
        """The server runs as another user than this process (which then is root)."""
        return self.uid != os.geteuid()


def owner_of(uid: int) -> Owner:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise EmbeddedError(
            f"User id {uid} has no name in the passwd database, and PostgreSQL's initdb refuses that. "
            "Add an entry for it, or use a PostgreSQL server: HOLDFAST_DATABASE_URL=postgresql://..."
        ) from None
    return Owner(entry.pw_uid, entry.pw_gid, entry.pw_name)


def choose_owner(folder_uid: int) -> Owner:
    """The user for a new server whose nearest existing folder belongs to `folder_uid`."""
    if os.geteuid() != 0:
        return owner_of(os.geteuid())
    if folder_uid != 0:
        with suppress(EmbeddedError):
            return owner_of(folder_uid)
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return owner_of(pwd.getpwnam(name).pw_uid)
    raise EmbeddedError(
        "PostgreSQL does not run as root, and there is no user 'postgres' or 'nobody' to run it as. "
        "Run this as another user, or in a folder that belongs to one."
    )


def child_environment() -> dict[str, str]:
    """An environment without what changes the programs: no PG*, and a locale that exists on every machine."""
    strange = ("PG", "LC_", "LANG", "NOTIFY_SOCKET")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
    return kept | {"LC_ALL": "C", "TZ": "UTC"}


def run_as(
    owner: Owner, argv: Sequence[str | Path], text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program as the server's user, to its end."""
    lent = owner.other
    try:
        return subprocess.run(
            [str(arg) for arg in argv],
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            cwd="/",
            env=child_environment(),
            user=owner.uid if lent else None,
            group=owner.gid if lent else None,
            extra_groups=[] if lent else None,
        )
    except OSError as error:
        who = f" as user {owner.name!r}" if lent else ""
        raise EmbeddedError(f"Cannot run {argv[0]}{who}: {error.strerror or error}.") from error


def shell_as(owner: Owner, script: str, *args: str | Path, text: str | None = None) -> None:
    """Run a few lines of shell as the server's user; `args` are $1, $2, ..."""
    done = run_as(owner, ["/bin/sh", "-c", f"set -e; {script}", "sh", *args], text)
    if done.returncode != 0:
        reason = done.stderr.strip() or f"exit code {done.returncode}"
        raise EmbeddedError(f"Cannot prepare the embedded server as user {owner.name!r}: {reason}")


def can_enter(owner: Owner, folder: Path) -> bool:
    return not owner.other or run_as(owner, ["/bin/sh", "-c", 'cd "$1"', "sh", folder]).returncode == 0


def detach(owner: Owner, argv: Sequence[str | Path], log: Path) -> int:
    """Start a program that outlives this process, and give its pid.

    It gets a session of its own, so that Ctrl-C in a terminal does not reach it, and is no child of ours, so
    that it leaves no zombie. The shell sees the words as arguments, never as text to parse.
    """
    lent = owner.other
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", DETACH, "sh", str(log), *(str(arg) for arg in argv)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            env=child_environment(),
            start_new_session=True,
            user=owner.uid if lent else None,
            group=owner.gid if lent else None,
            extra_groups=[] if lent else None,
        )
        return int(done.stdout)
    except (OSError, ValueError) as error:
        raise EmbeddedError(f"Cannot start {argv[0]} as user {owner.name!r}: {error}") from error
