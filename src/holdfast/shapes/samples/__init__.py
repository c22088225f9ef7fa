"""Samples: how each queue stood in each minute, for thirty days. What operators ask is in operate/samples.py.

service    takes a sample each minute: whichever worker comes first
measure    what Prometheus reads
checks     what `holdfast doctor` asks
"""
