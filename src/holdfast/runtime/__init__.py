"""The loops that do the work: claim, execute, settle, renew, sweep. No SQL text here."""
