"""The command line's text for a refusal: the sentence of the verb, and the command or option that is the way out."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.db.faults import Forbidden
from holdfast.errors import NoDatabase
from holdfast.model.state import BLOCKED, COMPLETED, DEAD_LETTER
from holdfast.model.text import command
from holdfast.operate.refusal import Coded, NothingDone, Why, some

# Said behind the sentence.
_WAYS_OUT = {
    "no_queue": ". Create it: holdfast queue create {queue}",
    "unknown_queue": ". Create it: holdfast queue create {queue}",
    "stranded": ". Put it back to waiting: holdfast doctor --fix stranded",
    COMPLETED: ". To run a copy of it: holdfast jobs copy {id}",
    DEAD_LETTER: ". To delete it: holdfast dead discard",
    BLOCKED: ". Run it again in its place: holdfast jobs retry {id}, "
    "or release its key without it: holdfast keys release --skip",
    "edit_finished": ". Change and run a copy of it: holdfast jobs copy {id} NAME=TEXT",
    "not_ended": ". See it: holdfast jobs show {id}",
    "edit_blocked": ". Run it again in its place: holdfast jobs retry {id}",
    "edit_dead_letter": ". Put it back to work: holdfast dead redrive {id}",
    "elsewhere": ". See: holdfast jobs show {id}",
    "no_group": ". Use one that holdfast dead list shows, such as 1f3a9c02",
    "no_operation": ". The list: holdfast operations list",
    "no_entry": ". The list: holdfast audit",
    "under_way": ". Stop it first: holdfast operations stop {id}",
    "ended": ". Start a new one if there is more to do",
    "has_runner": ". See how far it is: holdfast operations show {id}",
    "no_worker_id": ". The list: holdfast workers list",
    "no_host": ". The list: holdfast workers list",
    "no_worker": ". The list: holdfast workers list --all",
    "no_ring": ". Those that have one: holdfast ring",
    "no_policy": ". Order it: holdfast queue set {queue} --ordering key --on-dead-letter {on_dead_letter}",
    "has_jobs": ": holdfast queue create {queue}_ordered --ordering key",
    "has_workers": ": holdfast workers, then holdfast workers drain ID",
    "not_ordered": ". See its jobs: holdfast jobs list --queue {queue} --key KEY",
    "no_key_limit": ". Give it one: holdfast queue set {queue} --key-concurrency 10",
    "not_held": ". Those that are: holdfast keys held {queue}",
    "not_stuck": ". See what it waits for: holdfast keys show {queue} {key}",
    "choose": ": --retry runs it again in its place, --skip makes it a dead letter and releases its key",
    "too_slow": ": holdfast runbook horizon",
    "not_by_queue": ". Leave --queue out",
    "expired": ". Reset it: holdfast subscriptions reset {subscription} --to start",
    "is_run": ": holdfast subscriptions pause {subscription}",
    "is_built": ": holdfast projection cancel {projection}",
    "is_rebuild": ". Give it up: holdfast projection cancel {projection}",
    "is_replay": ". End it: holdfast subscriptions remove {subscription}",
    "schedule_exists": ": holdfast schedule remove {name}",
    "schedule_in_code": ": holdfast schedule pause {name}",
    "no_run": ". The list: holdfast workflow list",
    "several_runs": ": --workflow NAME",
    "run_ended": ". What it did: holdfast workflow show {id}",
    "no_code": ". Name the app that has it: --app MODULE:APP",
    "no_step": ". What it has: holdfast workflow timeline {id}",
    "run_exists": ". Choose another: --id",
    "is_workflow": ": holdfast workflow {verb} {id}",
    "not_stopped": ". Pause it first: holdfast subscriptions pause {subscription}",
    "no_relay": ". Of a projection: holdfast projection retry {subscription}",
    "sent_twice": ". Put it back instead: holdfast subscriptions reset {subscription} --to POSITION",
    "applied_twice": ". Rebuild it instead: holdfast projection rebuild {subscription}",
}

# Said instead of it: it names options.
_INSTEAD: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "no_filter": lambda _: "say which jobs: their ids, or filters such as --state, --queue or --task",
    "no_states": lambda of: (
        f"say which states: --state {', '.join(of['states'][:-1])} or {of['states'][-1]} ({of['verb']} deletes for good)"
    ),
    "no_change": lambda _: "say what to change: NAME=TEXT, NAME:=JSON, --unset, --priority or another option",
    "no_workers": lambda _: "say which workers: their ids, --host NAME or --all",
    "last": lambda of: f"--last must be more than 0 s and at most 7 d, not {of['last']:g} s",
    "limit": lambda of: f"--limit must be between 1 and {of['most']}, not {of['limit']}",
}


def words(said: Why | Exception) -> str:
    """The whole sentence, for a person at a shell."""
    if isinstance(said, NothingDone):
        return f"nothing was {said.data['done']}: {some([words(fault) for fault in said.faults])}"
    text = said.text if isinstance(said, Why) else str(said)
    if not isinstance(said, Why | Coded):
        return text
    if instead := _INSTEAD.get(said.code):
        return instead(said.data)
    if said.code == "no_keys":
        option = f"--{said.data['rule'].replace('_', '-')}"
        new = f"holdfast queue create {said.data['queue']}_by_key {option} ..."
        return f"{text}. Create a queue for it and enqueue there: {new}"
    quoted = {name: command(str(value)) for name, value in said.data.items()}
    way = _WAYS_OUT.get(said.code, "").format(**quoted)
    return text + (way.removeprefix(".") if text.endswith("?") else way)


def at_a_shell(error: Exception) -> str:
    """The text of an error that ends a command."""
    if isinstance(error, NoDatabase):
        return (
            "no database was named. Pass --database-url postgresql://user@host:5432/name, or set HOLDFAST_DATABASE_URL, "
            "DATABASE_URL or PGHOST/PGDATABASE. To try it without one: HOLDFAST_DATABASE_URL=embedded:"
        )
    if isinstance(error, Forbidden):
        refused = str(error).split("\n", 1)[0]  # the rest quotes the statement
        return (
            f"{refused}. The login of this command needs one of the roles that `holdfast roles sql` makes: "
            "holdfast_operator_ro to read, holdfast_operator_rw to act, holdfast_worker for a worker"
        )
    return words(error)


def worded(left: Mapping[Why, int]) -> dict[str, int]:
    """Why not, and how many."""
    counts = Counter[str]()
    for why, count in left.items():
        counts[words(why)] += count
    return dict(counts)
