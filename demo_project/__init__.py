"""A small shop that uses jobqueue: what the demo runs, and what the tests stand on."""
