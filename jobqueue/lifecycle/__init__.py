"""Everything that can happen to a job, a function each; the only writer of ``status``.

Enqueueing joins the transaction that the caller is in. Every other function is one transaction, or
one for each batch. ``using`` is a database alias; None asks the routers where jobs are written.
"""

from jobqueue.lifecycle import bulk
from jobqueue.lifecycle.alias import alias
from jobqueue.lifecycle.audit import Actor
from jobqueue.lifecycle.claiming import claim, extend
from jobqueue.lifecycle.editing import replay_edited
from jobqueue.lifecycle.enqueueing import enqueue, enqueue_many
from jobqueue.lifecycle.jobs import cancel, move, prioritise, run_now
from jobqueue.lifecycle.leases import extend_leases, release_leases, release_worker
from jobqueue.lifecycle.letters import delete_letters, discard, replay, restore
from jobqueue.lifecycle.maintenance import look, promote, prune, rescue
from jobqueue.lifecycle.measuring import count, sample
from jobqueue.lifecycle.queues import pause, resume
from jobqueue.lifecycle.settling import interrupt, release, settle

__all__ = [
    "Actor",
    "alias",
    "bulk",
    "cancel",
    "claim",
    "count",
    "delete_letters",
    "discard",
    "enqueue",
    "enqueue_many",
    "extend",
    "extend_leases",
    "interrupt",
    "look",
    "move",
    "pause",
    "prioritise",
    "promote",
    "prune",
    "release",
    "release_leases",
    "release_worker",
    "replay",
    "replay_edited",
    "rescue",
    "restore",
    "resume",
    "run_now",
    "sample",
    "settle",
]
