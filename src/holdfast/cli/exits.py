"""The exit codes of the program. docs/cli.md says what each means; they do not change."""

DONE = 0
ENVIRONMENT = 1  # another problem: the server is unreachable, a job failed, a check found something
USER = 2  # a mistake in what was asked
PENDING = 3  # `migrate status --check`: migrations are pending
TIMED_OUT = 124  # what was waited for did not happen in time
INTERRUPTED = 130  # Ctrl-C
