"""The bench: what the queue manages here, beside what the database alone would."""
