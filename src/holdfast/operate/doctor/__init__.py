"""`holdfast doctor`: is everything around the jobs as it should be? Every finding names the command that fixes it.

finding     what a check says, and what it has to go by
thresholds  from where on something is worth a word; the runbook reads it too
run         all checks in order; the acts of `--fix`
schema      migrations, drift, indexes, queues and their tables
statements  the SQL that a finding about the schema proposes
plans       what the planner would do with the statements of a job's life
server      durability, vacuum, who holds back the horizon
connection  LISTEN, poolers, clocks, how many connections there are
jobs        what is stranded, stuck, deadly, quarantined, unknown, dead or not tidied up
waiting     pauses, breakers and limits that due jobs wait for
keys        what is blocked, parked or held after its trial
order       what an operator reads first
"""
