"""Pure values of the engine: no I/O, standard library only."""
