"""Contracts: the schemas of each event type, version by version, and whether they are compatible.

schemas    the two schemas of a class: what its code reads, and what it writes
algebra    whether a reader accepts all that a writer writes: yes, no or unknown (extra contracts)
explain    where it does not, path by path, and how to fix it
catalog    the types of this process, those of the database, those of contracts.json
check      every pair of versions that meet, with a verdict
verbs      `app.contracts`: check, store, asyncapi
asyncapi   the document for other tools
pages      a page of documentation per event type
cli        `holdfast contracts`
"""
