"""Django's migrations of the schema holdfast."""
