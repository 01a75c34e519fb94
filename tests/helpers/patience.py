"""How long the tests wait for other processes and threads."""

PATIENCE = 300.0  # seconds: what takes a few where nothing else runs must not fail on a busy machine
