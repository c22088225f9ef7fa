"""Child processes for handlers with `process=True`: started fresh, reused, limited, and killed when they must stop."""
