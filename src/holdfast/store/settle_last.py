"""The end of a job as the last statement of its handler's transaction."""

from ..model.job import ClaimedJob
from ..model.outcome import Completed, Settlement
from ..sql import query_in
from .settle import settle_in
from .statement import Flow, Last


def settle_last(settlement: Settlement, worker: str) -> Last | Flow[bool]:
    """Most jobs are in their first attempt, with no follow-ups and no rows beside them: then it is one
    statement, to be sent with the COMMIT. Else it is that of settle_in()."""
    grant, outcome, _, keep = settlement
    plain = type(grant) is ClaimedJob and grant.rest is None and grant.generation == 1
    if not plain or not isinstance(outcome, Completed) or outcome.beside or outcome.rows:
        return settle_in(settlement, worker)
    queue = grant.queue
    return Last(
        f"holdfast_settle_{queue}",
        query_in("settle_one", queue),
        (queue, grant.id_text, grant.generation, grant.token_text, worker, keep, outcome.result),
        lambda: settle_in(settlement, worker),
    )
