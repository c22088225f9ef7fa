"""Operations: acts over many jobs that an operator began and workers continue. Their steps are in operate/operations.py.

service    takes up operations without a runner, in every worker
measure    Prometheus metrics
checks     checks for `holdfast doctor`
"""
