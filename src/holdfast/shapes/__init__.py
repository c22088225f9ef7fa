"""What is built on top of tasks: schedules."""
