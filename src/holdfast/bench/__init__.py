"""Measurements that users can repeat on their own server: `holdfast bench SCENARIO...`. Ratios inside one run are the point.

scenarios/  one file per scenario; each adds one value per round to its results
context     what a scenario is given: the server, the sizes, where results go
server      the server to measure, and a fresh database for each measurement
crew        worker processes, started before the clock runs
worker_app  what runs in them
fill        jobs written by the server itself, and waiting until they are done
machine     what stands beside every figure: versions, settings, machine
report      results, their tables and their JSON
targets     the figures we want to reach, computed from results of one run
plots       the results as SVG
wake, limits   older measurements that docs/wake-ups.md and docs/limits.md quote
"""
