"""The worker under a name that no other app has (Django Channels has a ``runworker``, too)."""

from jobqueue.management.commands.runworker import Command

__all__ = ["Command"]
