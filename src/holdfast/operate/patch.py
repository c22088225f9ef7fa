"""Change the payloads of many dead letters before they are put back: one JSON merge patch (RFC 7396) over all of them.

Each must fit the handler afterwards. A payload that would not is left as it is, and reported.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ..errors import ConfigurationError
from ..model import exact
from ..model.masking import masked
from ..model.state import DEAD_LETTER
from ..runtime.handler import PayloadError
from ..store import dead as store
from ..store.acts import Locked
from ..store.dead import DeadFilter, DeadPayload
from ..store.statement import Flow
from ..tasks.payload import PAYLOAD_BYTES, dump
from .bulk import Results
from .dead import begin_dead, check_dead, no_dead_letter
from .edit import Known
from .job_acts import Verb
from .procedure import Procedure, run

LOOKED_AT = 1000  # dead letters that a dry run checks
AT_A_TIME = 4 * 2**20  # bytes of payloads that are in memory
_OURS = "holdfast."


@dataclass(frozen=True, slots=True)
class Unfit:
    """A dead letter whose payload would not fit after the patch."""

    id: UUID
    task: str
    why: str


def merged(value: Any, patch: Any) -> Any:
    """As RFC 7396 defines it: null removes a name, an object is merged into an object, any other value replaces."""
    if not isinstance(patch, Mapping):
        return patch
    found = dict(value) if isinstance(value, Mapping) else {}
    for name, item in patch.items():
        if item is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), item)
    return found


def check_patch(patch: Mapping[str, Any]) -> None:
    dump(dict(patch))
    if not patch:
        raise ConfigurationError(
            'say what to change: a JSON object such as {"currency": "EUR", "note": null}'
        )


def patch_verb(patch: Mapping[str, Any], known: Known | None = None, secrets: Sequence[str] = ()) -> Verb:
    """`known` finds the task whose signature a payload must fit. `secrets` are names that the audit leaves out."""
    check_patch(patch)

    def apply(locked: Sequence[Locked], done: int) -> Flow[Results]:
        results: Results = {"patched": 0, "same": 0, "does_not_fit": 0}
        sizes = yield from store.dead_sizes([job.id for job in locked])
        for some in store.portions(sizes, AT_A_TIME):
            rows = yield from store.dead_payloads(some)
            changes: list[tuple[UUID, str]] = []
            for one in rows:
                text, unfit = _patched(one, patch, known)
                if unfit is not None:
                    results["does_not_fit"] += 1
                elif text is None:
                    results["same"] += 1
                else:
                    changes.append((one.id, text))
            results["patched"] += len((yield from store.patch_dead(changes))) if changes else 0
        return results

    more = {"patch": masked(dict(patch), names=secrets)}
    return Verb("dead patch", "patched", (DEAD_LETTER,), (DEAD_LETTER,), no_dead_letter, apply, more)


def _patched(
    one: DeadPayload, patch: Mapping[str, Any], known: Known | None
) -> tuple[str | None, Unfit | None]:
    """The new payload (None: unchanged), or why not."""
    before = exact.loads(one.payload)
    after = merged(before, patch)
    if exact.dumps(after, sort_keys=True) == exact.dumps(before, sort_keys=True):  # to Python 1 is True
        return None, None
    text = exact.dumps(after, ensure_ascii=False)
    why = _unfit(one, text, known)
    return (text, None) if why is None else (None, Unfit(one.id, one.task, why))


def _unfit(one: DeadPayload, text: str, known: Known | None) -> str | None:
    if one.task.startswith(_OURS):
        return "its payload belongs to something else"
    if len(text.encode()) > PAYLOAD_BYTES:
        return f"the payload would have more than {PAYLOAD_BYTES:,} bytes"
    definition = known(one.task) if known is not None else None
    if definition is None:
        return None
    try:
        definition.codec.decode(one.version, text)
    except PayloadError as error:
        return str(error)
    return None


def unfit_of(
    patch: Mapping[str, Any],
    which: DeadFilter | Sequence[UUID],
    known: Known | None = None,
) -> Procedure[list[Unfit]]:
    """Which of the first dead letters would not fit. Nothing is changed."""
    check_patch(patch)
    if isinstance(which, DeadFilter):
        check_dead(which)
        window = yield from begin_dead(which)
        step = functools.partial(store.next_dead, which, window, None, LOOKED_AT)
        found, _ = yield from run(step)
        job_ids = [one.id for one in found]
    else:
        job_ids = list(which)[:LOOKED_AT]
    sizes = yield from run(lambda: store.dead_sizes(job_ids))
    unfit: list[Unfit] = []
    for some in store.portions(sizes, AT_A_TIME):
        rows = yield from run(functools.partial(store.dead_payloads, some))
        unfit += [why for one in rows if (why := _patched(one, patch, known)[1]) is not None]
    return unfit
