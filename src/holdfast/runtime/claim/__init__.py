"""Claiming: which jobs this worker takes next. Everything here is a Claimer (claimer.py).

plain      a queue without keys, from a low-water mark on         (low_water.py)
ordered    a queue whose keys are streams, key by key             (candidates.py, net.py)
affine     a queue whose keys stay with one worker each, in no order
fair       a queue whose keys take turns, or have limits
queues     all queues of this worker, each first in its turn      (portions.py, lost_replies.py)
notified   queues that a notification named
suspects   jobs that were in two deaths
trials     the one job that is tried while a breaker is open

limits     wraps the claim of a limited queue, and held the jobs that were set aside.
"""
