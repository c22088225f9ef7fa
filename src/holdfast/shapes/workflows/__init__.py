"""Workflows: one process of the business, many durable steps. A run is a job.

journal           the boundary between the code of a run and its storage
database_journal  the journal of one run, on the database
outgoing          the boundary between runs and the log of events
handover          a transaction, and a caller that may stop waiting for it
recorder          writes the rows of all runs of a worker in one statement; lanes has the waiting rows
service           a worker's other duties
ends              the end of runs, and of those whose job is gone
checks            the doctor's checks
workflow_type     a declared workflow and its starts; starting has starts in batches, handles the handles of runs
store             its statements; queries.sql and schema.sql beside it have the text
timeline          the records of a run for people; working has the running steps
runs              runs as operators see them; operate.sql beside it has the text
verbs             operators' verbs; retries and forks continue runs, finding resolves which run is meant
bars              a run in words, and its timeline drawn
explaining        reasons for `holdfast explain`
health            questions of the doctor and the metrics
measure           Prometheus metrics
sending           the payload of a signal that an operator sends
cli               `holdfast workflow`
faults            exceptions in workflows
"""

CLI = {"workflow": f"{__name__}.cli:app"}  # groups of commands
