"""Measurements on the machine at hand: throughput and latency, with ratios inside one run."""
