"""The command line's text for an advice: the command to run."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.db.database import Database
from holdfast.db.embedded import default_path, parse_embedded_url
from holdfast.distribution import NAME
from holdfast.model.text import command
from holdfast.operate.advice import Advice

Data = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Shell:
    """Where the commands are to be run: how the app is named, and which embedded server is meant, if it is one."""

    app: str = "MODULE:APP"
    embedded: Path | None = None

    def line(self, advice: Advice) -> str:
        return _WORDS[advice.code](advice.data, self)

    def lines(self, advice: Iterable[Advice]) -> list[str]:
        return [self.line(one) for one in advice]

    def place(self) -> list[str]:
        """For `holdfast db`."""
        return [] if self.embedded in (None, default_path()) else ["--path", str(self.embedded)]


def shell_for(database: Database, app: str = "MODULE:APP") -> Shell:
    return Shell(app, parse_embedded_url(database.url) if database.is_embedded else None)


def _start_worker(of: Data, at: Shell) -> str:
    queue = [] if of["queue"] is None else ["--queue", of["queue"]]
    return command("holdfast", "worker", at.app if of["able"] else "MODULE:APP", *queue)


def _run_sql(of: Data, at: Shell) -> str:
    """One call of psql that runs each statement by itself."""
    words = [word for text in of["statements"] for word in ("-c", text)]
    note = f"   ({of['note']})" if of["note"] else ""
    if at.embedded is not None:
        return command("holdfast", "db", "psql", *at.place(), *words) + note
    return f'psql "$HOLDFAST_DATABASE_URL" {command(*words)}{note}'


def _restart_server(of: Data, at: Shell) -> str:
    """On the server's machine, as the user it runs as. The embedded one starts again with its next use."""
    if at.embedded is not None:
        return command("holdfast", "db", "stop", "--force", *at.place())
    folder = of["folder"]
    return command("pg_ctl", "restart", *(("-D", folder) if folder else ()))


def _fix(of: Data, _: Shell) -> str:
    """With the limits it was found under."""
    limits = [f"--limit={name}={value:g}" for name, value in of["limits"].items()]
    return command("holdfast", "doctor", "--fix", of["name"], *limits)


def _jobs(verb: str) -> Callable[[Data, Shell], str]:
    def say(of: Data, _: Shell) -> str:
        if "ids" in of:
            return command("holdfast", "jobs", verb, *map(str, of["ids"]))
        task = ["--task", of["task"]] if "task" in of else []
        return command("holdfast", "jobs", verb, "--state", of["state"], *task, "--yes")

    return say


def _redrive(of: Data, _: Shell) -> str:
    """Gently, where it is all of a task."""
    if "id" in of:
        return command("holdfast", "dead", "redrive", str(of["id"]))
    return command(
        "holdfast", "dead", "redrive", "--task", of["task"], "--newer-than", "1h", "--rate", "50/s", "--yes"
    )


def _lift_keys(of: Data, _: Shell) -> str:
    return key_command("lift", of["queue"], *of["keys"])


def _release_keys(of: Data, _: Shell) -> str:
    how = [] if of["how"] is None else [f"--{of['how']}"]
    if of["keys"] is None:
        return key_command("release", of["queue"], options=(*how, "--all", "--yes"))
    return key_command("release", of["queue"], *of["keys"], options=how)


def _subscription(of: Data, _: Shell) -> str:
    words = ["--to", of["to"]] if "to" in of else []
    sure = ["--yes"] if of["verb"] in ("remove", "reset", "forget-failures") else []
    return command("holdfast", "subscriptions", of["verb"], of["name"], *words, *sure)


def _webhook(of: Data, _: Shell) -> str:
    which = [] if of["endpoint"] is None else [of["endpoint"]]
    sure = ["--yes"] if of["verb"] in ("disable", "delete") else []
    return command("holdfast", "webhook", of["verb"], *which, *sure)


def _set_queue(of: Data, _: Shell) -> str:
    option = f"--{of['rule'].replace('_', '-')}"
    return command("holdfast", "queue", "set", of["queue"], option, str(of["value"]))


def key_command(verb: str, queue: str, *keys: str, options: Iterable[str] = ()) -> str:
    """A line of `holdfast keys`, also for keys that look like an option."""
    dashes = ["--"] if any(key.startswith("-") for key in keys) else []
    return command("holdfast", "keys", verb, *options, *dashes, queue, *keys)


def _holdfast(*words: str) -> Callable[[Data, Shell], str]:
    """A command of Holdfast; `{name}` is the subject of the advice, and `*names` several."""

    def say(of: Data, _: Shell) -> str:
        found: list[str] = []
        for word in words:
            if word.startswith("*"):
                found += of[word[1:]]
            else:
                found.append(str(of[word[1:-1]]) if word.startswith("{") else word)
        return command("holdfast", *found)

    return say


def _export(variable: str) -> Callable[[Data, Shell], str]:
    return lambda of, _: f"export {variable}={command(of['url'])}"


_WORDS: dict[str, Callable[[Data, Shell], str]] = {
    "start_worker": _start_worker,
    "run_sql": _run_sql,
    "fix": _fix,
    "check": _holdfast("doctor", "--only", "{name}"),
    "ask": _holdfast("runbook", "{name}"),
    # The server and the way to it
    "restart_server": _restart_server,
    "use_database_url": _export("HOLDFAST_DATABASE_URL"),
    "use_listen_url": _export("HOLDFAST_LISTEN_URL"),
    "pool_sessions": lambda _, __: "pool_mode = session   (in pgbouncer.ini, for this database)",
    "synchronise_clock": lambda _, __: "timedatectl set-ntp true",
    "step_clock": lambda _, __: "chronyc makestep",
    "fewer_slots": lambda _, __: "holdfast worker MODULE:APP --concurrency N   (fewer slots per worker)",
    "upgrade": lambda _, __: f"pip install --upgrade {NAME}",
    "migrate": _holdfast("migrate", "up"),
    "print_schema": _holdfast("migrate", "sql"),
    # Jobs
    "list_jobs": _holdfast("jobs", "list"),
    "show_job": _holdfast("jobs", "show", "{id}"),
    "explain_job": _holdfast("explain", "{id}"),
    "retry_jobs": _jobs("retry"),
    "cancel_jobs": _jobs("cancel"),
    "discard_jobs": _jobs("discard"),
    "redrive_dead": _redrive,
    "list_dead": _holdfast("dead", "list"),
    "list_dead_of": _holdfast("dead", "list", "--task", "{task}"),
    "keep_ids": lambda of, _: f'@app.receive("{of["name"]}", ..., keep_ids="30d")   (in the code)',
    "webhook": _webhook,
    "run": lambda of, _: command("holdfast", "workflow", of["verb"], str(of["id"])),
    "accept_run": lambda of, at: command(
        "holdfast", "workflow", "retry", str(of["id"]), "--accept", "--app", at.app
    ),
    "drop_signal": _holdfast("workflow", "retry", "{id}", "--drop-signal"),
    "signal_run": lambda of, _: command(
        "holdfast", "workflow", "signal", str(of["id"]), of["signal"], "JSON"
    ),
    "operation": _holdfast("operations", "{verb}", "{id}"),
    "list_runs": _holdfast("workflow", "list", "--workflow", "{workflow}"),
    "secret_keys": lambda _, __: (
        'export HOLDFAST_SECRET_KEYS="1:$(openssl rand -base64 32)"   (for every process that sends)'
    ),
    "old_secret_keys": lambda _, __: (
        "add their keys at the end of HOLDFAST_SECRET_KEYS, then: holdfast webhook reseal"
    ),
    # Keys, queues, tasks, workers, schedules
    "show_key": lambda of, _: key_command("show", of["queue"], of["key"]),
    "show_ring": lambda of, _: command("holdfast", "ring", of["queue"], f"--key={of['key']}"),
    "release_keys": _release_keys,
    "lift_keys": _lift_keys,
    "limit_key": lambda of, _: key_command(
        "limit", of["queue"], of["key"], options=("--concurrency", str(of["concurrency"]))
    ),
    "stuck_keys": _holdfast("keys", "blocked"),
    "create_queue": _holdfast("queue", "create", "{queue}"),
    "show_queue": _holdfast("queue", "show", "{queue}"),
    "set_queue": _set_queue,
    "resume_queue": _holdfast("queue", "resume", "{name}"),
    "resume_task": _holdfast("task", "resume", "{name}"),
    "list_tasks": _holdfast("task", "list"),
    "list_workers": _holdfast("workers"),
    "drain_workers": _holdfast("workers", "drain", "*workers"),
    "overview": _holdfast("status"),
    "pause_schedule": _holdfast("schedule", "pause", "{name}"),
    "rebase_events": _holdfast("events", "rebase", "--yes"),
    "events_lag": _holdfast("events", "lag"),
    "set_retention": _holdfast("events", "retention", "--hold-days", "{days}", "--hold-bytes", "{bytes}"),
    "subscription": _subscription,
    "check_relay": _holdfast("relays", "check", "{name}"),
    "retry_projection": _holdfast("projection", "retry", "{name}"),
    "cancel_rebuild": _holdfast("projection", "cancel", "{name}"),
    "remove_schedule": _holdfast("schedule", "remove", "{name}"),
}
