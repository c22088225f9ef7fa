"""Schedules: jobs that are enqueued again and again, each slot once, however many workers there are.

spec       a schedule as a value, and which of its slots are due
timing     the slots of a cron expression or an interval
declare    what users declare: `app.schedule(...)`
store      its statements; queries.sql and schema.sql beside it have the text
service    stores the schedules of the code and fires due ones, in every worker
verbs      verbs of operators: `app.schedules`
backfill   fires the slots of a past period
checks     checks for `holdfast doctor`
cli        `holdfast schedule`
"""

CLI = {"schedule": f"{__name__}.cli:app"}  # groups of commands
