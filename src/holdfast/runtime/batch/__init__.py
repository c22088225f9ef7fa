"""Batch tasks: what their handler is called with (items), how jobs gather (gather), and the one call for them (call)."""
