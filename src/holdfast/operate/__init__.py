"""What operators see and do, each verb once. It speaks to nobody in particular: a surface says who acts, and words it.

operator    every verb by its name: Operator(database, actor)
procedure   what a verb is made of, so that it runs sync and async
refusal     why a verb is refused: code, data, sentence
overview    how things stand: queues, workers, dead letters, throughput, the server
queues      the queues: what they hold, making one, making those an app declares
pauses      pause and resume queues and tasks
search      which jobs fit a filter
jobs        list jobs, show one
bulk        acts on many: batches, count, audit
job_acts    retry, cancel and discard jobs: named ones, or all that fit
edit        change a job that does not run
dead        dead letters by error and one by one, put back to work or deleted
audit       who did what
workers     who runs what, and asking them to leave
explain     why one job is not running
doctor      is everything around the jobs as it should be, and what fixes it
advice      what to do next: a code and what it is about
wording     times and lists in the sentences of both
producing   enqueue by hand
stats       how much gets done, and what takes the space
configuration   which settings hold, and where each comes from
runbook     the support queries, each with a judgement
"""
