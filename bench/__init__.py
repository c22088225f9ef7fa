"""Measurements of this repository, beside those that are installed with the package: other job queues on the same server.

`python -m bench all peers` runs the scenarios of `holdfast bench` and this one.
"""
