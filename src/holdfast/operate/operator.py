"""The operator: every verb by its name, for whichever surface asks.

`operator = Operator(database, actor)`, then `operator.pause_queue("inbox")` runs a verb, and on an event loop
`await operator.pause_queue.arun("inbox")` runs the same. A verb returns values and raises errors; the surface words them.
"""

from . import (
    audit,
    copy,
    dead,
    edit,
    explain,
    groups,
    holds,
    job_acts,
    jobs,
    key_limits,
    keys,
    limits,
    operations,
    overview,
    patch,
    pauses,
    preview,
    producing,
    queues,
    reveal,
    ring,
    runbook,
    samples,
    search,
    stats,
    undo,
    views,
    workers,
)
from .doctor import run as examining
from .procedure import Method, Runner


class Operator(Runner):
    # Overview
    overview = Method(overview.overview)
    minutes = Method(stats.minutes)
    waits = Method(stats.waits)
    trend = Method(samples.trend)
    stats = Method(stats.stats)
    usual = Method(samples.usual)
    samples = Method(samples.samples)
    explain = Method(explain.explain)
    doctor = Method(examining.doctor)
    fix = Method(examining.fix)
    ask = Method(runbook.ask)
    list_audit = Method(audit.list_audit)

    # Jobs
    list_jobs = Method(jobs.list_jobs)
    search_archive = Method(jobs.search_archive)
    show_job = Method(jobs.show_job)
    find_job = Method(jobs.find_job)
    id_by_start = Method(jobs.id_by_start)
    find_dead = Method(jobs.find_dead)
    find_archived = Method(jobs.find_archived)
    enqueue = Method(producing.enqueue)
    edit_job = Method(edit.edit_job)
    copy_job = Method(copy.copy_job)
    reveal_field = Method(reveal.reveal_field)
    list_groups = Method(groups.list_groups)
    find_group = Method(groups.find_group)

    # An act on jobs: on named ones, or on all that are selected
    act_on = Method(job_acts.act_on)
    act_on_all = Method(job_acts.act_on_all)
    select = Method(job_acts.select)
    preview_of = Method(preview.preview_of)
    preview_all = Method(preview.preview_all)

    # An act on many that continues without the process that began it
    begin_operation = Method(operations.begin_operation)
    find_operation = Method(operations.find_operation)
    list_operations = Method(operations.list_operations)
    stop_operation = Method(operations.stop_operation)
    run_operation = Method(operations.run_operation)

    begin_undo = Method(undo.begin_undo)
    undo = Method(undo.undo)

    # Views of the dashboard
    list_views = Method(views.list_views)
    save_view = Method(views.save_view)
    delete_view = Method(views.delete_view)

    # Dead letters
    group_dead = Method(dead.group_dead)
    dead_facets = Method(dead.dead_facets)
    list_dead = Method(dead.list_dead)
    select_dead = Method(dead.select_dead)
    preview_dead = Method(dead.preview_dead)
    unfit_of = Method(patch.unfit_of)

    # Keys
    stuck_keys = Method(keys.stuck_keys)
    list_keys = Method(keys.list_keys)
    show_key = Method(keys.show_key)
    hot_keys = Method(keys.hot_keys)
    release_keys = Method(keys.release_keys)
    release_all = Method(keys.release_all)
    hold_keys = Method(holds.hold_keys)
    lift_keys = Method(holds.lift_keys)
    held_keys = Method(holds.held_keys)
    limit_keys = Method(key_limits.limit_keys)
    limited_keys = Method(key_limits.limited_keys)
    rings = Method(ring.rings)
    affinities = Method(ring.affinities)

    # Queues and tasks
    queue_names = Method(queues.queue_names)
    list_queues = Method(queues.list_queues)
    create_queue = Method(queues.create_queue)
    set_queue = Method(queues.set_queue)
    sync_queues = Method(queues.sync_queues)
    no_queue_now = Method(search.no_queue_now)
    rules_of = Method(limits.rules_of)
    show_rules = Method(limits.show_rules)
    list_rules = Method(limits.list_rules)
    pause_queue = Method(pauses.pause_queue)
    resume_queue = Method(pauses.resume_queue)
    pause_task = Method(pauses.pause_task)
    resume_task = Method(pauses.resume_task)
    known_tasks = Method(pauses.known_tasks)
    list_tasks = Method(pauses.list_tasks)
    doubt = Method(pauses.doubt)

    # Workers
    list_workers = Method(workers.list_workers)
    masked_names = Method(workers.masked_names)
    drain_workers = Method(workers.drain_workers)
    wait_until_gone = Method(workers.wait_until_gone)
