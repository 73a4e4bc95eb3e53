"""A shop's orders: each is placed together with the jobs that follow from it."""
