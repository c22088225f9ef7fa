"""Which folder holds what.

The folder a user names is the home. Everything lives in the area, which is the home itself, except where root
names a folder that no other user can enter (such as one in a closed home folder): then the area is a folder of its own in
/var/lib/holdfast, and the home has a file `elsewhere` that names it.

    data/       PostgreSQL's files            socket/   unless its path would be too long
    *.lock      see locks                     log       the server's messages
    keep        do not stop with the last user
    host        which machine or container started the server last
    password    for TCP, only when TCP was asked for
"""

import hashlib
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from holdfast.db.embedded import postmaster
from holdfast.db.embedded.owner import Owner, can_enter, choose_owner, owner_of, shell_as
from holdfast.errors import ConfigurationError, EmbeddedError

_FOLDER = Path(".holdfast") / "postgres"
LOCKS = (postmaster.START, postmaster.USERS, postmaster.ALIVE, postmaster.WATCHER)
POINTER = "elsewhere"
SYSTEM_FOLDERS = (Path("/var/lib/holdfast"), Path("/var/tmp/holdfast-root"))  # noqa: S108 - checked in safe_folder
MAKE_FOLDER = 'umask 022; mkdir -p "$(dirname -- "$1")"; umask 077; mkdir -p "$1"'
SOCKET_BYTES = 100  # the system's limit is 104 (macOS) or 108


@dataclass(frozen=True)
class ServerPaths:
    home: Path
    area: Path
    owner: Owner

    @property
    def data(self) -> Path:
        return self.area / postmaster.DATA

    @property
    def log(self) -> Path:
        return self.area / "log"

    @property
    def keep(self) -> Path:
        return self.area / postmaster.KEEP

    @property
    def password(self) -> Path:
        return self.area / "password"

    @property
    def socket(self) -> Path:
        """The same for every process that asks, whatever its environment."""
        near = self.area / "socket"
        fits = len(os.fsencode(near / ".s.PGSQL.65535.lock")) <= SOCKET_BYTES
        if fits and not set(',"') & set(str(near)):  # libpq takes a comma for the next host
            return near
        return Path("/tmp") / f"holdfast-{self.owner.uid}-{_hash(self.area)}"  # noqa: S108 - checked in safe_folder


def default_path() -> Path:
    """The folder of `embedded:`: below HOLDFAST_HOME, else below .holdfast of this folder or of the nearest one above it
    that has one of this user's, else below ./.holdfast"""
    if home := os.environ.get("HOLDFAST_HOME"):
        return Path(home).absolute() / "postgres"
    here = Path.cwd()
    above = (folder / _FOLDER for folder in (here, *here.parents))
    return next((found for found in above if _is_own(found)), here / _FOLDER)


def _is_own(path: Path) -> bool:
    """A server that another user left in a folder above, such as /tmp, is not meant."""
    try:
        return locate(path) is not None
    except (EmbeddedError, OSError):
        return False


def parse_embedded_url(url: str) -> Path:
    """`embedded:`, `embedded:relative/path` or `embedded:///absolute/path`"""
    scheme, colon, rest = url.partition(":")
    if scheme != "embedded" or not colon:
        raise ConfigurationError(f"{url!r} is not an embedded: address.")
    if "?" in rest or "#" in rest:
        raise ConfigurationError(f"{url!r}: an embedded: address takes no parameters.")
    if rest.startswith("//") and not rest.startswith("///"):
        raise ConfigurationError(f"{url!r}: write embedded:///absolute/path or embedded:relative/path.")
    path = unquote(rest.removeprefix("//"))
    return Path(path).absolute() if path else default_path()


def locate(path: Path) -> ServerPaths | None:
    """Where an embedded server is, without changing anything; None if there never was one."""
    home = _home(path)
    area = _follow(home)
    try:
        uid = os.lstat(area / postmaster.START).st_uid
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        raise EmbeddedError(f"This user may not enter {home}. Choose another folder.") from None
    if uid != os.geteuid() and os.geteuid() != 0:
        raise EmbeddedError(
            f"The embedded server in {home} belongs to user {owner_of(uid).name!r}. "
            "Run this as that user, or choose another folder."
        )
    if uid == 0:
        raise EmbeddedError(
            f"{area} belongs to root, and PostgreSQL does not run as root: chown -R postgres {area}"
        )
    return ServerPaths(home, area, owner_of(uid))


def prepare(path: Path) -> ServerPaths:
    """Where the embedded server is or will be; makes the folder and the lock files."""
    found = locate(path)
    if found is None:
        found = _make(_home(path))
    if any(not (found.area / name).exists() for name in LOCKS):
        shell_as(found.owner, 'umask 077; cd "$1"; shift; touch "$@"', found.area, *LOCKS)
    return found


def safe_folder(path: Path, owner: Owner) -> Path:
    """A 0700 folder for `owner` in a folder open to others: made by us, or exactly as we would make it."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found = os.stat(path.name, dir_fd=fd, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode) and found.st_uid == 0 and os.geteuid() == 0 and owner.uid != 0:
            os.chown(path.name, owner.uid, owner.gid, dir_fd=fd, follow_symlinks=False)
            found = os.stat(path.name, dir_fd=fd, follow_symlinks=False)
    finally:
        os.close(fd)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != owner.uid or stat.S_IMODE(found.st_mode) & 0o077:
        raise EmbeddedError(f"{path} should be a folder that only user {owner.name!r} can enter. Remove it.")
    return path


def system_folder() -> Path:
    """A folder of root's that every user can enter, for files that cannot stay below a closed folder."""
    for folder in SYSTEM_FOLDERS:
        try:
            folder.mkdir(mode=0o755, exist_ok=True)
            found = folder.lstat()
        except OSError:
            continue
        if stat.S_ISDIR(found.st_mode) and found.st_uid == 0 and not found.st_mode & 0o022:
            folder.chmod(0o755)
            return folder
    raise EmbeddedError(
        f"Cannot make {SYSTEM_FOLDERS[0]}, which root needs for a folder that others cannot enter."
    )


def _home(path: Path) -> Path:
    home = Path(path).expanduser().resolve()
    if "\n" in str(home):
        raise ConfigurationError(
            f"{str(home)!r}: a folder name with a line break cannot hold a PostgreSQL server."
        )
    return home


def _follow(home: Path) -> Path:
    try:
        area = Path((home / POINTER).read_text().strip())
    except OSError:
        return home
    if area.parent not in SYSTEM_FOLDERS or os.geteuid() != 0:
        raise EmbeddedError(f"{home / POINTER} names {area}, which is no place for an embedded server.")
    return area


def _nearest(path: Path) -> Path:
    return path if path.exists() else _nearest(path.parent)


def _make(home: Path) -> ServerPaths:
    nearest = _nearest(home)
    if not nearest.is_dir():
        raise ConfigurationError(f"{nearest} is not a folder.")
    if nearest == home and any(POINTER not in entry.name for entry in home.iterdir()):
        found = locate(home)  # another process may have made it just now
        if found is None:
            raise ConfigurationError(f"{home} holds other files: name an empty folder, or a new one.")
        return found
    folder = nearest.stat()
    owner = choose_owner(folder.st_uid)
    if not can_enter(owner, nearest):
        return _make_elsewhere(home, owner)
    (home / POINTER).unlink(missing_ok=True)
    if folder.st_uid == owner.uid or not owner.other:
        shell_as(owner, MAKE_FOLDER, home)
    else:  # root makes it in a separate folder, and gives only the innermost one away
        shell_as(owner_of(0), MAKE_FOLDER, home)
        os.chown(home, owner.uid, owner.gid, follow_symlinks=False)
    return ServerPaths(home, home, owner)


def _make_elsewhere(home: Path, owner: Owner) -> ServerPaths:
    area = safe_folder(system_folder() / _hash(home), owner)
    home.mkdir(parents=True, exist_ok=True)
    draft = home / f".{POINTER}.{os.getpid()}"
    draft.write_text(f"{area}\n")
    draft.rename(home / POINTER)
    return ServerPaths(home, area, owner)


def _hash(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
