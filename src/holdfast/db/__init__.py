"""The only I/O and the only importer of a driver."""
