"""Groups as an operator sees them."""

from dataclasses import dataclass
from uuid import UUID

from ..errors import ConfigurationError
from ..store import chains
from ..store.chains import GroupStatus
from ..store.queue_load import prefer_indexes
from ..store.statement import Flow
from .procedure import Procedure, run
from .search import check_limit


@dataclass(frozen=True, slots=True)
class GroupLine:
    state: str  # open, finished, stuck or broken
    group: GroupStatus


@dataclass(frozen=True, slots=True)
class GroupReport:
    state: str
    group: GroupStatus
    members: dict[str, int]  # how many are in each state, of those that are still kept


def list_groups(*, only_open: bool = False, limit: int = 50) -> Procedure[list[GroupLine]]:
    """The newest first."""
    check_limit(limit)
    found = yield from run(lambda: chains.list_groups(only_open=only_open, limit=limit))
    return [GroupLine(group.state, group) for group in found]


def find_group(group_id: UUID) -> Procedure[GroupReport]:
    """Refuses an id that is no group's."""
    report = yield from run(lambda: _report(group_id))
    if report is None:
        raise ConfigurationError(f"there is no group {group_id}, or it is finished and no longer kept")
    return report


def _report(group_id: UUID) -> Flow[GroupReport | None]:
    group = yield from chains.group_status(group_id)
    if group is None:
        return None
    yield from prefer_indexes()
    members = yield from chains.group_members(group_id)
    return GroupReport(group.state, group, members)
