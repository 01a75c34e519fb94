"""The timeout of tests that wait for other processes and threads."""

PATIENCE = 300.0  # seconds; generous, so that tests do not fail on a busy machine
