"""Orders and their receipts."""
