"""The audit: every act that changes jobs, queues, tasks or workers leaves a row. The caller names the actor; the
server notes the role that was logged in."""

import functools
import time
from dataclasses import dataclass

from ..store import audit as store
from ..store.audit import AuditFilter, AuditLine
from .procedure import Procedure, run
from .search import PATIENCE, check_limit, check_texts


@dataclass(frozen=True, slots=True)
class AuditPage:
    entries: list[AuditLine]
    next: int | None  # pass it as `before` to continue; None: there are no more
    cut: bool = False  # fewer than asked for because the search stopped early


def list_audit(
    *,
    before: int | None = None,
    limit: int = 50,
    actor: str | None = None,
    action: str | None = None,
    target: str | None = None,
) -> Procedure[AuditPage]:
    """The last acts first; `before` continues below an entry. `action` is a noun, with its verb or alone, and `target` an
    id or a name that the act was about."""
    check_limit(limit)
    check_texts({"actor": actor, "action": action, "target": target})
    wanted = AuditFilter(actor, action, target)
    found: list[AuditLine] = []
    deadline = time.monotonic() + PATIENCE
    while True:
        step = functools.partial(store.list_audit, wanted, before, limit - len(found))
        more, before = yield from run(step)
        found += more
        if len(found) == limit:
            return AuditPage(found, found[-1].id)
        if before is None or time.monotonic() > deadline:
            return AuditPage(found, before, before is not None)
