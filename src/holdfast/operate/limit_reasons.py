"""How limits, holds, payload and age keep a waiting job from running, as sentences."""

from collections.abc import Iterator, Sequence

from ..model.queue import Rate
from ..store.explain import HoldSeen, LimitsSeen, Seen, Subject, WorkerSeen
from .advice import Advice, advise
from .wording import cut, moment, some, span

_NEVER = 9999  # the year of a hold without an end
ReasonText = tuple[str, str, list[Advice]]  # code, sentence, what to do


def limit_reasons(queue: str, seen: LimitsSeen) -> Iterator[ReasonText]:
    """Each limit that applies now, with what changes it."""
    show = advise("show_queue", queue=queue)

    def change(rule: str, value: object) -> list[Advice]:
        return [advise("set_queue", queue=queue, rule=rule, value=value), show]

    if seen.concurrency is not None and seen.running >= seen.concurrency:
        said = f"It waits for the limit of its queue {queue}: {seen.running:,} of {seen.concurrency:,} run."
        yield "queue_full", said, change("concurrency", 2 * seen.concurrency)
    if seen.rate is not None and seen.next_in > 0:
        rate = Rate(seen.rate)
        said = f"The rate of queue {queue}, {rate.text}, allows the next start in {span(seen.next_in)}."
        yield "queue_rate", said, change("rate", Rate(2 * seen.rate).text)
    key = cut(seen.key)
    if seen.key_concurrency is not None and seen.key_running >= seen.key_concurrency:
        said = (
            f"It waits for the limit of its key {key}: {seen.key_running:,} of {seen.key_concurrency:,} run."
        )
        more = 2 * seen.key_concurrency
        own = [advise("limit_key", queue=queue, key=seen.key, concurrency=more), show]
        yield "key_full", said, own if seen.key_own else change("key_concurrency", more)
    if seen.key_rate is not None and seen.key_next_in > 0:
        rate = Rate(seen.key_rate)
        said = f"The rate of its key {key}, {rate.text}, allows the next start in {span(seen.key_next_in)}."
        yield "key_rate", said, change("key_rate", Rate(2 * seen.key_rate).text)


def hold_reason(queue: str, hold: HoldSeen) -> ReasonText:
    """Until when its key is held, why, and the state of the trial."""
    lift = advise("lift_keys", queue=queue, keys=[hold.key])
    # Last, behind a colon: viewers are shown only the part before it.
    why = f": {cut(hold.reason)}" if hold.reason else "."
    if not hold.over:
        end = "it is lifted" if hold.until.year == _NEVER else moment(hold.until)
        then = ", and then one job of it is tried first" if hold.trial else ""
        said = f"Its key {cut(hold.key)} is held until {end}{then}{why}"
        return "key_held", said, [lift]
    trial = "None was claimed yet"
    if hold.trial_state == "running":
        trial = f"That is {hold.trial_job}, which runs now"
    elif hold.trial_state == "over":
        trial = f"That was {hold.trial_job}, which has ended. Nobody has lifted or renewed the hold since"
    held = f"Its key {cut(hold.key)} was held until {moment(hold.until)}, and one job of it is tried first"
    said = f"{held}. {trial}{why}"
    return "key_on_trial", said, [lift]


def misfit_reason(seen: Seen, able: Sequence[WorkerSeen], wait: float, start: Advice) -> ReasonText | None:
    """Why a job waits whose payload does not fit, and for which worker. `able` workers know its task; `wait` seconds after
    the last of them refused it, it becomes a dead letter."""
    job, refusals = seen.job, seen.refusals
    if not refusals:
        return None
    refused = {refusal.signature for refusal in refusals}
    if all(refusal.newer for refusal in refusals):
        said = f"It is set aside: it needs a newer worker: {cut(refusals[0].reason)}. It waits until one is started."
        return "newer", said, [start]
    said = (
        f"It is set aside: its payload does not fit {job.task} version {job.version} of this release: "
        f"{cut(refusals[0].reason)}. It waits for a worker whose signature differs."
    )
    tried = [f"{w.id} (release {w.release})" for w in able if w.signature in refused]
    others = [f"{w.id} (release {w.release})" for w in able if w.signature not in refused]
    if tried:
        said += f" Refused by {some(tried)}."
    if others:
        said += f" Not yet tried by {some(others)}."
    elif tried:
        left = wait - refusals[0].ago
        when = f"in {span(left)}" if left > 0 else "with the next sweep"
        said += f" Every live signature has refused it: it is a dead letter {when}."
    else:
        said += " No live worker of its queue knows the task."
    return "misfit", said, [start]


def backs_off(job: Subject, until: str) -> str:
    """Between two attempts."""
    said = f"It backs off {until} after attempt {job.attempts} of {job.max_attempts} failed"
    if job.gives_up_at is not None:
        said += f", and gives up with the first one that fails after {moment(job.gives_up_at)}"
    return f"{said}: {cut(job.last_error)}"


def past_deadline(job: Subject) -> str:
    """Whether it was its age that ended it."""
    if job.gives_up_at is None or job.attempts >= job.max_attempts:
        return ""
    return f", which failed after its deadline of {moment(job.gives_up_at)}"
