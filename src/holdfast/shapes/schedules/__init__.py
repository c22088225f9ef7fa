"""Schedules: jobs that are enqueued again and again, each slot once, however many workers there are.

spec       a schedule as a value, and which of its slots are due for what
timing     the slots of a cron expression or an interval
declare    what users declare: `app.schedule(...)`
store      its statements; queries.sql and schema.sql beside it have the text
service    declares the schedules of the code and fires what is due, in every worker
verbs      what operators do: `app.schedules`
backfill   fires the slots of a time that is past
checks     what `holdfast doctor` asks
cli        `holdfast schedule`
"""

CLI = {"schedule": f"{__name__}.cli:app"}  # groups of commands
