"""What can be done to dead letters, one by one."""

from __future__ import annotations

from django.contrib.admin.models import CHANGE, DELETION
from django.db.models import Q
from django.utils.translation import gettext_lazy, ngettext

from jobqueue import conf, lifecycle
from jobqueue.admin.operations import Operation
from jobqueue.models import DeadLetter

_OPEN, _DISCARDED = Q(discarded_at__isnull=True), Q(discarded_at__isnull=False)


def _replayed(count: int) -> str:
    return ngettext(
        "%(count)s dead letter was replayed: it is a pending job again.",
        "%(count)s dead letters were replayed: they are pending jobs again.",
        count,
    ) % {"count": count}


def _discarded(count: int) -> str:
    return ngettext(
        "%(count)s dead letter was discarded.", "%(count)s dead letters were discarded.", count
    ) % {"count": count}


def _restored(count: int) -> str:
    return ngettext(
        "%(count)s dead letter is open again.", "%(count)s dead letters are open again.", count
    ) % {"count": count}


def _deleted(count: int) -> str:
    return ngettext(
        "%(count)s dead letter was deleted for ever.",
        "%(count)s dead letters were deleted for ever.",
        count,
    ) % {"count": count}


def _deletable() -> Q:
    """Return which letters can be deleted for ever: none unless the project has it switched on."""
    return _DISCARDED if conf.get().DELETE_DEAD_LETTERS else Q(pk__in=[])


REPLAY = Operation(
    name="replay",
    model=DeadLetter,
    permission="replay_deadletter",
    label=gettext_lazy("Replay"),
    applies=_OPEN,
    since="died_at",
    perform=lifecycle.replay,
    flag=CHANGE,
    log="Replayed.",
    done=_replayed,
)
DISCARD = Operation(
    name="discard",
    model=DeadLetter,
    permission="discard_deadletter",
    label=gettext_lazy("Discard"),
    applies=_OPEN,
    since="died_at",
    perform=lifecycle.discard,
    flag=CHANGE,
    log="Discarded.",
    done=_discarded,
    title=gettext_lazy("Discard dead letters?"),
    question=gettext_lazy(
        "A discarded dead letter is dealt with: it is neither counted nor listed any more, and "
        "cannot be replayed. It is kept, and can be restored."
    ),
    is_destructive=True,
)
RESTORE = Operation(
    name="restore",
    model=DeadLetter,
    permission="discard_deadletter",
    label=gettext_lazy("Restore"),
    applies=_DISCARDED,
    since="died_at",
    perform=lifecycle.restore,
    flag=CHANGE,
    log="Restored.",
    done=_restored,
)
DELETE = Operation(
    name="delete_for_ever",
    model=DeadLetter,
    permission="delete_deadletter",
    label=gettext_lazy("Delete for ever"),
    applies=_deletable,
    since="died_at",
    perform=lifecycle.delete_letters,
    flag=DELETION,
    log="Deleted for ever.",
    done=_deleted,
    title=gettext_lazy("Delete dead letters for ever?"),
    question=gettext_lazy(
        "A deleted dead letter is gone with its payload, and nothing brings it back. Its attempts "
        "stay until they are pruned."
    ),
    is_destructive=True,
)
