"""Operators' questions and acts, each verb once. It knows no surface: a surface names the actor, and renders the results.

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
dead        dead letters by error and one at a time, put back to work or deleted
audit       which actor did what
workers     the workers and their load, and asking them to leave
explain     why one job is not running
doctor      checks of everything around the jobs, and their fixes
advice      what to do next: a code and what it is about
wording     times and lists in the sentences of both
producing   enqueue by hand
stats       how much gets done, and what takes the space
configuration   which settings hold, and where each comes from
runbook     the support queries, each with a judgement
"""
