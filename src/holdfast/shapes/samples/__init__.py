"""Samples: the state of each queue in each minute, for thirty days. Operators' questions are in operate/samples.py.

service    takes a sample each minute: whichever worker is first
measure    Prometheus metrics
checks     checks for `holdfast doctor`
"""
