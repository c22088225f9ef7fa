"""The result of a check, and what checks share."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from ...db.database import Database
from ...db.probe import Probe
from ...model.actor import Actor, actor_of
from ...store import doctor as store
from ...store.catalog import Catalog, read_catalog
from ...store.doctor import ServerFacts
from ..advice import Advice, Knows, advise
from .thresholds import Limits

Level = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Finding:
    code: str
    level: Level
    what: str
    fix: list[Advice]  # its fixes, in order
    details: list[str] = field(default_factory=list)
    otherwise: list[Advice] = field(default_factory=list)  # alternatives, one of which is enough
    jobs: int = 0  # that wait or died because of it, as far as counted
    lasts: float | None = None  # seconds since it began, if known: of several, the longest


class Left(str):
    """A fix reports this for what it did not touch."""

    __slots__ = ()


class NotChecked(Exception):
    """This check cannot be made here, with the reason."""


class Patient:
    """The database under examination, and answers that several checks share, asked once."""

    def __init__(
        self, database: Database, probe: Probe, limits: Limits, knows: Knows, actor: str | Actor = ""
    ) -> None:
        self.database = database
        self.probe = probe
        self.limits = limits
        self.knows = knows
        self.actor = actor_of(actor)  # of a fix

    @property
    def dead_after(self) -> float:
        return self.database.settings.dead_after

    @functools.cached_property
    def server(self) -> ServerFacts:
        return self.probe.look(store.server())

    @functools.cached_property
    def catalog(self) -> Catalog:
        return self.probe.look(read_catalog())

    def fixing(self, name: str, **other: float) -> Advice:
        """A fix of the doctor's, under the limits that the finding was made with."""
        return advise("fix", name=name, limits=replace(self.limits, **other).changed())


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    about: str  # the sentence when nothing is found
    codes: tuple[str, ...]
    run: Callable[[Patient], Iterable[Finding]]
    needs_schema: bool = True
    compares: bool = False  # compares with this release's schema, so not used where a newer release made it
