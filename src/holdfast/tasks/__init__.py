"""Tasks: what a user declares, how its arguments become a payload, and what enqueue returns."""
