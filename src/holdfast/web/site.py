"""The dashboard of one app: its databases, pages and acts, and who may see them."""

import importlib
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from starlette.requests import Request

from holdfast.app import Holdfast
from holdfast.cli.advice import Shell, shell_for
from holdfast.db.migrate.address import describe
from holdfast.errors import ConfigurationError
from holdfast.model.actor import Actor
from holdfast.model.release import own_version
from holdfast.operate.doctor.thresholds import Limits
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure
from holdfast.pages import Act, Page, Pages
from holdfast.web.guard import Csrf
from holdfast.web.identity import Authorize, Identity, OneTimeUrl, identify
from holdfast.web.reading import Reading
from holdfast.web.seals import Seals
from holdfast.web.snapshots import Snapshots

if TYPE_CHECKING:
    from holdfast.operate.doctor.run import Diagnosis

T = TypeVar("T")
DOCTOR = 60.0  # seconds that a diagnosis lasts
OLD = 600.0  # seconds that it serves beyond that, while a new one is made
NUMBERS = 1.0


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
        limits: Limits | None = None,
        named: str = "MODULE:APP",
    ) -> None:
        self.app = app
        self.login = login
        self.limits = limits
        self.named = named  # how a command names the app
        self.read_only = read_only
        self.snapshots = Snapshots()
        self.streams: Counter[str] = Counter()  # that are open, by who has them
        self.csrf = Csrf((secret or secrets.token_hex(32)).encode())
        self.seals = Seals(self.csrf)
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
        self.acts.update({act.name: act for act in (*pages.acts, *coded)})

    def add_shapes(self) -> None:
        """What shapes name. The web knows no shape by hand."""
        for shape in self.app._shapes:
            if shape.pages is not None:
                module, _, attribute = shape.pages.partition(":")
                self.add(getattr(importlib.import_module(module), attribute))

    # Who ------------------------------------------------------------------------------------------------------------

    async def identity(self, request: Request) -> Identity | None:
        return await identify(self._authorize, request)

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
        """What the doctor says, once a minute for everybody. Nobody waits for a new one while the last is not too old."""
        from holdfast.shapes import CHECKS

        def look() -> "object":
            return self.reader.doctor.arun(checks=CHECKS, knows=self.knows, limits=self.limits)

        found: Diagnosis = await self.snapshots.get("doctor", DOCTOR, look, OLD)  # type: ignore[arg-type]
        return found

    def known_diagnosis(self) -> "Diagnosis | None":
        """The last one, however old; None: nobody has asked yet."""
        found: Diagnosis | None = self.snapshots.last("doctor")
        return found

    def knows(self, task: str, version: int) -> bool:
        tasks = self.app.tasks
        return not tasks.known() or tasks.find(task, version) is not None

    @property
    def shell(self) -> Shell:
        return shell_for(self.app.database, self.named)

    @property
    def title(self) -> str:
        return self._title or describe(self.reading.dsn).removeprefix("database ")

    async def close(self) -> None:
        if self._reading is not None:
            await self._reading.aclose()
            self._reading.close()
            self._reading = None

    def now(self) -> datetime:
        return datetime.now(UTC)

    def menu(self) -> Mapping[str, Sequence[Page]]:
        groups: dict[str, list[Page]] = {"": [], "Work": [], "Flow": [], "System": []}
        for page in self.pages.values():
            if page.icon:
                groups[page.group].append(page)
        return groups
