"""The dashboard of one app: its databases, pages and acts, and the access to them."""

import functools
import importlib
import re
import secrets
from collections import Counter
from collections.abc import Awaitable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request

from holdfast.app import Holdfast
from holdfast.cli.advice import Shell, shell_for
from holdfast.db.migrate.address import describe
from holdfast.errors import ConfigurationError
from holdfast.model.actor import Actor
from holdfast.model.masking import masked_text
from holdfast.model.release import own_version
from holdfast.operate.doctor.thresholds import Limits
from holdfast.operate.edit import masked_of
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure
from holdfast.pages import Act, Page, Pages, with_why
from holdfast.tasks.definition import Definition
from holdfast.web.attempts import Attempts
from holdfast.web.baselines import Baselines
from holdfast.web.guard import Csrf
from holdfast.web.identity import Authorize, Identity, OneTimeUrl, identify, sign_in_of
from holdfast.web.naming import page_at
from holdfast.web.reading import Reading
from holdfast.web.seals import Seals
from holdfast.web.snapshots import Snapshots
from holdfast.web.swapping import Names
from holdfast.web.users import UsersFile

if TYPE_CHECKING:
    from holdfast.operate.doctor.run import Diagnosis

T = TypeVar("T")
DOCTOR = 60.0  # seconds that a diagnosis lasts
DOCTOR_SHARE = 1 / 300  # of the time, at most, that an open overview keeps the doctor busy
_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")  # of W3C
OLD = 600.0  # seconds that it serves beyond that, while a new one is made
MASKED_LASTS = 30.0  # seconds that is remembered what workers mask
STANDING = 10.0  # seconds between two looks at whether another database is there


def _checked(trace_url: str | None) -> str | None:
    if trace_url is not None and not (
        trace_url.startswith(("http://", "https://")) and "{trace}" in trace_url
    ):
        raise ConfigurationError(
            f"trace_url must be an address with {{trace}} in it, such as https://jaeger.example/trace/{{trace}}, "
            f"not {trace_url!r}"
        )
    return trace_url


class Site:
    def __init__(
        self,
        app: Holdfast,
        authorize: Authorize,
        *,
        read_only: bool = False,
        secret: str | None = None,
        title: str | None = None,
        login: OneTimeUrl | None = None,
        people: UsersFile | None = None,
        limits: Limits | None = None,
        trace_url: str | None = None,
        named: str = "MODULE:APP",
        name: str = "",
        attempts: Attempts | None = None,
    ) -> None:
        self.app = app
        self.name = name  # of its database, where there are several
        self.beside: Sequence[Site] = ()  # all of them, in their order
        self.login = login
        self.people = people
        self.attempts = attempts or Attempts()
        self.limits = limits
        self.trace_url = _checked(trace_url)
        self.named = named  # how a command names the app
        self.read_only = read_only
        self.snapshots = Snapshots()
        self._masked_said: frozenset[str] = frozenset()  # by workers
        self.streams: Counter[str] = Counter()  # that are open, by their owner
        own = f"{secret or secrets.token_hex(32)}\0{name}"  # signatures are valid for one database only
        self.csrf = Csrf(own.encode())
        self.seals = Seals(self.csrf)
        self.names = Names(self.csrf.sign)
        self.baselines = Baselines(self.csrf.sign)
        self.release = own_version()
        self._authorize = authorize
        self._title = title
        self._reading: Reading | None = None
        self.pages: dict[str, Page] = {}
        self.acts: dict[str, Act] = {}

    def add(self, pages: Pages) -> None:
        for page in pages.pages:
            if page.path in self.pages:
                raise ConfigurationError(f"two pages are called {page.path!r}. Give one of them another path")
            self.pages[page.path] = page
        coded = pages.coded_acts(self.app.tasks) if pages.coded_acts is not None else ()
        self.acts.update({act.name: with_why(act) for act in (*pages.acts, *coded)})

    def add_shapes(self) -> None:
        """What shapes name. The web knows no shape by hand."""
        for shape in self.app._shapes:
            if shape.pages is not None:
                module, _, attribute = shape.pages.partition(":")
                self.add(getattr(importlib.import_module(module), attribute))

    # Who ------------------------------------------------------------------------------------------------------------

    async def identity(self, request: Request) -> Identity | None:
        return await identify(self._authorize, request)

    def sign_in_page(self, request: Request) -> str:
        """Of the app around; empty: it has none."""
        found = sign_in_of(self._authorize)
        return found(request) if found is not None else ""

    # What ------------------------------------------------------------------------------------------------------------

    @property
    def reading(self) -> Reading:
        if self._reading is None:
            self._reading = Reading(self.app.database)
        return self._reading

    @property
    def reader(self) -> Operator:
        return Operator(self.reading, Actor("web", "web"))

    def operator(self, actor: Actor) -> Operator:
        return Operator(self.app.database, actor)

    async def look(self, procedure: Procedure[T]) -> T:
        return await self.reader.arun(procedure)

    async def diagnosis(self) -> "Diagnosis":
        """The doctor's findings, once a minute for all viewers. Nobody waits for new ones while the last are not too old."""
        found: Diagnosis = await self.snapshots.get("doctor", DOCTOR, self._diagnose, OLD)
        return found

    def _diagnose(self) -> "Awaitable[Diagnosis]":
        from holdfast.shapes import CHECKS

        return self.reader.doctor.arun(checks=CHECKS, knows=self.knows, limits=self.limits)

    def renew_diagnosis(self) -> None:
        """In the background, when the last one is older than that minute; on a large or busy server less often."""
        lasts = max(DOCTOR, self.snapshots.took("doctor") / DOCTOR_SHARE)
        self.snapshots.trouble("doctor", lasts, self._diagnose)

    def known_diagnosis(self) -> "Diagnosis | None":
        """The last one, however old; None: nobody has asked yet."""
        found: Diagnosis | None = self.snapshots.last("doctor")
        return found

    def knows(self, task: str, version: int) -> bool:
        tasks = self.app.tasks
        return not tasks.known() or tasks.find(task, version) is not None

    def masked_of(self, task: str) -> Collection[str]:
        """The names that its code says are secrets. What belongs to no task that is known here may hold what any of them
        was given, and so may a run of a workflow: there it is the names of all tasks."""
        known = self.app.tasks.definition
        return masked_of(task, known) if type(known(task)) is Definition else self._masked_anywhere

    async def learn_masked(self) -> None:
        """Before values are shown: what workers say that their code masks, for a dashboard that does not have the code."""
        self._masked_said = await self.snapshots.get(
            "masked", MASKED_LASTS, lambda: self.look(Operator.masked_names.procedure()), OLD
        )

    @property
    def _masked_anywhere(self) -> frozenset[str]:
        return self._masked_here | self._masked_said

    @functools.cached_property
    def _masked_here(self) -> frozenset[str]:
        tasks = self.app.tasks
        return frozenset(secret for name, _ in tasks.known() for secret in masked_of(name, tasks.definition))

    def trace_of(self, metadata: Any) -> tuple[str, str]:
        """The id of a job's trace, and its address; empty: it has none, or no address is set."""
        given = metadata.get("traceparent", "") if isinstance(metadata, Mapping) else ""
        found = _PARENT.fullmatch(str(given))
        if found is None:
            return "", ""
        return found[1], (self.trace_url or "").replace("{trace}", found[1])

    @property
    def shell(self) -> Shell:
        return shell_for(self.app.database, self.named)

    @property
    def title(self) -> str:
        return self._title or self.name or describe(self.reading.dsn).removeprefix("database ")

    def trouble(self) -> str:
        """Why its database cannot be read, as far as is known; empty: nothing is known. Nobody waits for it."""
        error = self.snapshots.trouble(
            "standing", STANDING, lambda: self.look(Operator.list_rules.procedure())
        )
        return masked_text(str(error)) if error is not None else ""

    async def close(self) -> None:
        if self._reading is not None:
            await self._reading.aclose()
            self._reading.close()
            self._reading = None

    def now(self) -> datetime:
        return datetime.now(UTC)

    def page_at(self, path: str) -> tuple[Page, dict[str, str]] | None:
        """The page that stands at a path, with the parts of it that the page is about."""
        return page_at(self.pages.values(), path)

    def menu(self) -> Mapping[str, Sequence[Page]]:
        groups: dict[str, list[Page]] = {"": [], "Work": [], "Flow": [], "System": []}
        for page in self.pages.values():
            if page.icon:
                groups[page.group].append(page)
        return groups
