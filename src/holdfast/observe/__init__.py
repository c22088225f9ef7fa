"""What a running worker shows to the outside: health, metrics and traces. It subscribes; nothing below knows of it."""
