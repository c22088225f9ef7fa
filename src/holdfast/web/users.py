"""People and programs that a file names: `holdfast web --users FILE`. A line is a name, a role and a hash:

    mara  admin   scrypt:32768:8:3:SALT:HASH    a password, for the page that asks for it
    ci    viewer  sha256:HASH until=2027-01-31  a bearer token, for programs; this one through that day

The file is read again when it changes: a removed user loses access with the next request.
"""

import asyncio
import contextlib
import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path

from starlette.requests import Request

from holdfast.errors import ConfigurationError
from holdfast.operate.wording import several
from holdfast.pages import Role
from holdfast.web.guard import Csrf
from holdfast.web.identity import SESSION, Identity, bearer_of, hashed

_log = logging.getLogger("holdfast.web")
_COST = (32768, 8, 3)  # of scrypt: 32 MiB and some 200 ms a guess
_MEMORY = 128 * 1024 * 1024
_SCRYPT = re.compile(r"scrypt:([0-9]{1,6}):([0-9]{1,2}):([0-9]{1,2}):([0-9a-f]{32}):([0-9a-f]{64})")
_TOKEN = re.compile(r"sha256:[0-9a-f]{64}")
_NOBODY = f"scrypt:{':'.join(map(str, _COST))}:{'0' * 32}:{'0' * 64}"
_AT_ONCE = 2  # passwords that are checked at the same time: each takes its memory
_LASTS = 12 * 3600.0  # seconds of a session
_MOST_SESSIONS = 1000
SHORTEST = 12  # characters of a password
LONGEST = 1000
FORM = "holdfast_login"  # the cookie of the page that asks


@dataclass(frozen=True, slots=True)
class Person:
    """A line of the file."""

    who: Identity
    secret: str
    until: date | None  # the last day, in UTC

    def now(self) -> "Person | None":
        """None: the time is over."""
        return self if self.until is None or datetime.now(UTC).date() <= self.until else None


@dataclass(frozen=True, slots=True)
class Known:
    """The users in the file."""

    passwords: Mapping[str, Person] = field(default_factory=dict)  # by name
    tokens: Mapping[str, Person] = field(default_factory=dict)  # by hash

    def named(self, name: str) -> Person | None:
        found = self.passwords.get(name)
        return None if found is None else found.now()


class UsersFile:
    """`authorize` of a file, with the sessions of users who signed in."""

    def __init__(self, path: str, now: Callable[[], float] = time.monotonic) -> None:
        self._path = Path(path)
        self._now = now
        self.csrf = Csrf(secrets.token_bytes(32), FORM)
        self.cookie = SESSION
        self._sessions: dict[
            str, tuple[str, str, float]
        ] = {}  # by hash: whose, by which line, and until when
        self._looking = asyncio.Semaphore(_AT_ONCE)
        self._seen = self._stamp()
        self._known, faults = read_users(self._text())
        if faults:
            raise ConfigurationError(f"{self._path}: {faults[0]}")
        if not (self._known.passwords or self._known.tokens):
            raise ConfigurationError(
                f"{self._path} names nobody. Make a line: holdfast web --new-user NAME=ROLE"
            )

    def __call__(self, request: Request) -> Identity | None:
        known = self._now_known()
        if (token := bearer_of(request)) is not None:
            return _of_token(known, token)
        name, secret, until = self._sessions.get(hashed(request.cookies.get(self.cookie, "")), ("", "", 0.0))
        if until <= self._now():
            return None
        found = known.named(name)  # another password ends the sessions of the one before
        return found.who if found is not None and found.secret == secret else None

    async def enter(self, name: str, password: str, check: Callable[[], None]) -> str | None:
        """A session for the right password; None: wrong. `check` refuses addresses with too many wrong ones. An unknown
        name takes as long as a known one."""
        async with self._looking:
            check()
            person = self._now_known().named(name)
            wanted = _NOBODY if person is None else person.secret
            fits = await asyncio.to_thread(fits_password, password[:LONGEST], wanted)
        if person is None or not fits:
            return None
        session = secrets.token_urlsafe(32)
        self._sessions[hashed(session)] = (name, wanted, self._now() + _LASTS)
        while len(self._sessions) > _MOST_SESSIONS:
            self._sessions.pop(next(iter(self._sessions)))
        return session

    def end(self, request: Request) -> None:
        self._sessions.pop(hashed(request.cookies.get(self.cookie, "")), None)

    # The file -------------------------------------------------------------------------------------------------------

    def _now_known(self) -> Known:
        """As the file is now. A line that is none lets nobody in, and the log names it; so does a file that is gone."""
        try:
            stamp = self._stamp()
            if stamp != self._seen:
                self._known, faults = read_users(self._text())
                self._seen = stamp
                for fault in faults:
                    _log.error("%s: %s. Nobody comes in by it", self._path, fault)
        except ConfigurationError as error:
            if self._seen:
                _log.error("%s. Nobody comes in", error)
            self._known, self._seen = Known(), ()
        return self._known

    def _stamp(self) -> tuple[int, ...]:
        with self._readable():
            found = os.stat(self._path)
        if found.st_mode & stat.S_IWOTH:
            raise ConfigurationError(f"{self._path} can be written by everybody: chmod o-w {self._path}")
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _text(self) -> str:
        with self._readable():
            return self._path.read_text(encoding="utf-8")

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigurationError(f"the users in {self._path} cannot be read: {why}") from None


def _of_token(known: Known, token: str) -> Identity | None:
    given, found = hashed(token), None
    for one, person in known.tokens.items():  # all of them, so that time tells nothing
        if hmac.compare_digest(one, given):
            found = person.now()
    return None if found is None else found.who


def read_users(text: str) -> tuple[Known, list[str]]:
    """The users, and the errors of other lines. An error does not repeat a hash."""
    passwords: dict[str, Person] = {}
    tokens: dict[str, Person] = {}
    faults: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            person = _read(words)
            name = person.who.name
            if name in passwords or name in {one.who.name for one in tokens.values()}:
                raise ConfigurationError(f"{name} is there twice")
        except ConfigurationError as error:
            faults.append(f"line {number}: {error}")
            continue
        if _TOKEN.fullmatch(person.secret):
            tokens[person.secret] = person
        else:
            passwords[name] = person
    return Known(passwords, tokens), faults


def _read(words: list[str]) -> Person:
    until = _until(words.pop()) if len(words) == 4 else None
    if len(words) != 3:
        raise ConfigurationError(
            f"a line is NAME ROLE HASH, perhaps with until=DAY, and this one has {several(len(words), 'word')}"
        )
    name, role, secret = words
    if not (_TOKEN.fullmatch(secret) or _costs(secret)):
        raise ConfigurationError(
            f"the hash of {name[:40]!r} is neither scrypt:... nor sha256:... Make the line: "
            f"holdfast web --new-user {name[:40]}={role[:20]}"
        )
    return Person(Identity(name, role), secret, until)  # type: ignore[arg-type]


def _until(word: str) -> date:
    with contextlib.suppress(ValueError):
        if word.startswith("until="):
            return date.fromisoformat(word.removeprefix("until="))
    raise ConfigurationError(f"until= takes a day such as until=2027-01-31, not {word[:40]!r}")


def _costs(secret: str) -> tuple[int, int, int] | None:
    """The cost of a scrypt hash; None: it is none, or would cost too much."""
    found = _SCRYPT.fullmatch(secret)
    if found is None:
        return None
    n, r, p = (int(found[k]) for k in (1, 2, 3))
    if n < 2 or n & (n - 1) or not 1 <= p <= 16 or r < 1 or 128 * r * (n + p) > _MEMORY // 2:
        return None
    return n, r, p


def fits_password(password: str, secret: str) -> bool:
    found, costs = _SCRYPT.fullmatch(secret), _costs(secret)
    if found is None or costs is None:
        return False
    return hmac.compare_digest(_scrypt(password, bytes.fromhex(found[4]), costs), bytes.fromhex(found[5]))


def _scrypt(password: str, salt: bytes, costs: tuple[int, int, int]) -> bytes:
    n, r, p = costs
    text = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(text, salt=salt, n=n, r=r, p=p, maxmem=_MEMORY, dklen=32)


def newcomer(name: str, role: Role) -> Identity:
    """A user that the file may contain."""
    who = Identity(name, role)
    if len(name.split()) != 1 or name.startswith("#"):
        raise ConfigurationError(f"a name in the file has no spaces and no # before it, not {name!r}")
    return who


def new_line(name: str, role: Role, password: str) -> str:
    """The line of somebody new, for the file."""
    who = newcomer(name, role)
    if not SHORTEST <= len(password) <= LONGEST:
        raise ConfigurationError(
            f"a password has {SHORTEST} to {LONGEST} characters, and this one has {len(password)}"
        )
    salt = secrets.token_bytes(16)
    cost = ":".join(map(str, _COST))
    return f"{who.name} {who.role} scrypt:{cost}:{salt.hex()}:{_scrypt(password, salt, _COST).hex()}"
