"""Tasks: declarations of users, how arguments become a payload, and what enqueue returns."""
