"""Replay with another payload: looked at as closely as one that is enqueued, and kept beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jobqueue import failpoints, options, payload, registry
from jobqueue.exceptions import InvalidArguments, JobQueueError, UnsupportedVersion
from jobqueue.lifecycle.alias import alias, store
from jobqueue.lifecycle.audit import Actor, record
from jobqueue.lifecycle.letters import move_back, replay_deed
from jobqueue.models import DeadLetter, Job


@failpoints.around
def replay_edited(
    letter_id: int,
    *,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    version: int | None = None,
    target_queue: str = "",
    by: Actor | None = None,
    reason: str = "",
    correlation_id: str = "",
    using: str | None = None,
) -> bool:
    """Replay a dead letter with this payload instead of its own; return whether it was there.

    The payload is checked as at enqueue, against the task that the letter names; ``version`` is
    the payload's, by default the letter's. Raise UnknownTask, UnsupportedVersion or InvalidJob
    before anything is written. What the payload was is kept with the replay.
    """
    using = alias(using)
    letters = DeadLetter.objects.using(using).open().filter(pk=letter_id)
    letter = letters.only("task", "version").first()
    if letter is None:
        return False
    version = letter.version if version is None else version
    args, kwargs = list(args), dict(kwargs)
    _check(letter.task, version, args, kwargs)
    if target_queue:
        options.check_queue_name(target_queue)
    with store(using).transaction():
        deed = replay_deed(target_queue, None, by, reason)
        ids = move_back([letter_id], deed, keeps_payload=True, using=using)
        Job.objects.using(using).filter(pk__in=ids).update(
            args=args, kwargs=kwargs, version=version
        )
        record(
            "replay edited",
            DeadLetter,
            ids,
            by=by,
            reason=reason,
            after={"payload": "edited"} | ({"queue": target_queue} if target_queue else {}),
            correlation_id=correlation_id,
            using=using,
        )
    return bool(ids)


def _check(task_name: str, version: int, args: list[Any], kwargs: dict[str, Any]) -> None:
    texts = payload.dumps(args, name="args"), payload.dumps(kwargs, name="kwargs")
    payload.check_size(*texts, name="args and kwargs")
    check_fit(task_name, version, *payload.loads(*texts))  # a copy: an upgrade may change it


def check_fit(task_name: str, version: int, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Raise UnknownTask, UnsupportedVersion or InvalidArguments where the task would not be called.

    A payload of an older version is upgraded first, as it would be for the handler.
    """
    task = registry.get(task_name)
    if version != task.version:
        if version > task.version or not task.upgrade:
            raise UnsupportedVersion(
                f"the payload has version {version}, and {task.name} reads version {task.version}"
            )
        args, kwargs = _upgrade(task, version, args, kwargs)
    task.check_arguments(args, kwargs)


def _upgrade(
    task: registry.Task[..., Any], version: int, args: list[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    try:
        return task.upgrade(version, args, kwargs)  # type: ignore[misc]
    except Exception as error:
        raise InvalidArguments(f"{task.name} cannot upgrade it: {type(error).__name__}") from error


def why_unfit(task_name: str, version: int, args: str, kwargs: str) -> str:
    """Return why a stored payload would not run, in a sentence; empty where it would."""
    try:
        check_fit(task_name, version, *payload.loads(args, kwargs))
    except JobQueueError as error:
        return str(error)
    return ""
