"""Real processes on a real server, everything that can go wrong with both, and an oracle outside.

``python -m tests.chaos --help`` runs it; docs/reliability.md says how to read what it prints.
"""
