"""What to ask the database: pure functions that return a Statement or a Flow. No I/O here."""
