"""Workflows: one process of the business, many durable steps. A run is a job.

journal           the line between the code of a run and what is stored
database_journal  the journal of one run, on the database
outgoing          the line between runs and the log of events
handover          a transaction, and whoever no longer waits for it
recorder          what all runs of a worker have ready, in one statement; lanes has what waits for that
service           what a worker does beside that
ends              the end of runs, and those whose job is gone
checks            what the doctor looks at
workflow_type     a declared workflow and its starts; starting has those that come together, handles their runs
store             its statements; queries.sql and schema.sql beside it have the text
timeline          what a run recorded, for those who look at it; working has the steps that are at work
runs              runs as operators see them; operate.sql beside it has the text
verbs             what operators do; retries and forks have how a run goes on, finding which run is meant
bars              a run in words, and its timeline drawn
explaining        what `holdfast explain` says of a run
troubles          what the doctor and metrics ask
measure           what Prometheus reads
sending           the payload of a signal that is sent by hand
cli               `holdfast workflow`
faults            what a workflow may raise, and what is raised in it
"""

CLI = {"workflow": f"{__name__}.cli:app"}  # groups of commands
