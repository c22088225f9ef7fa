"""A workflow, from the click to the search index."""
