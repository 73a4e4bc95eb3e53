"""The demo: real orders and workers, a flaky receiver, violence, and proofs from the evidence."""
