"""Saved views of the dashboard: a page and its filter under a name."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from .statement import Row, Statement, ids, named


@dataclass(frozen=True, slots=True)
class SavedView:
    id: UUID
    owner: str | None  # None: everybody's
    name: str
    page: str
    query: dict[str, str]
    made_by: str
    made_at: datetime


def _views(rows: Sequence[Row]) -> list[SavedView]:
    return [SavedView(*[*r[:4], json.loads(r[4]), *r[5:]]) for r in rows]


def list_views(who: str, limit: int) -> Statement[list[SavedView]]:
    return named("list_views", (who, limit), _views)


def find_view(view: UUID, who: str) -> Statement[SavedView | None]:
    return named("find_view", (view, who), lambda rows: next(iter(_views(rows)), None))


def save_view(
    owner: str | None, name: str, page: str, query: Mapping[str, str], by: str, most: int
) -> Statement[list[UUID]]:
    return named("save_view", (owner, name, page, json.dumps(dict(query)), by, most), ids)


def delete_view(view: UUID) -> Statement[list[UUID]]:
    return named("delete_view", (view,), ids)
