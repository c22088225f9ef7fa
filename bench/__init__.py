"""Measurements of this repository, beside those that are installed with the package: other job queues and workflow
engines on the same server.

`python -m bench all peers workflow-peers` runs the scenarios of `holdfast bench` and these two.
"""
