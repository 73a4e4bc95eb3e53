"""Everything that can happen to a job, a function each; the only writer of ``status``.

Enqueueing joins the transaction that the caller is in. Every other function is one transaction, or
one for each batch. ``using`` is a database alias; None asks the routers where jobs are written.
"""

from jobqueue.lifecycle.alias import alias
from jobqueue.lifecycle.audit import Actor
from jobqueue.lifecycle.claiming import claim, extend
from jobqueue.lifecycle.enqueueing import enqueue, enqueue_many
from jobqueue.lifecycle.maintenance import look, promote, prune, rescue
from jobqueue.lifecycle.operations import cancel, discard, replay, run_now
from jobqueue.lifecycle.queues import pause, resume
from jobqueue.lifecycle.settling import interrupt, release, settle

__all__ = [
    "Actor",
    "alias",
    "cancel",
    "claim",
    "discard",
    "enqueue",
    "enqueue_many",
    "extend",
    "interrupt",
    "look",
    "pause",
    "promote",
    "prune",
    "release",
    "replay",
    "rescue",
    "resume",
    "run_now",
    "settle",
]
