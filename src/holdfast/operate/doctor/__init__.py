"""`holdfast doctor`: checks everything around the jobs. Every finding names the command that fixes it.

finding     the result of a check, and what checks share
thresholds  the limits above which something is reported; the runbook reads them too
run         all checks in order; the acts of `--fix`
schema      migrations, drift, indexes, queues and their tables
statements  the SQL that a finding about the schema proposes
plans       the planner's choices for the statements of a job's life
server      durability, vacuum, which sessions hold back the horizon
connection  LISTEN, poolers, clocks, number of connections
jobs        stranded, stuck, deadly, quarantined, unknown and dead jobs, and the last tidy
waiting     pauses, breakers and limits that due jobs wait for
keys        blocked and parked keys, and keys held after a trial
order       which findings an operator reads first
"""
