"""Who asked for a job is asked about again when it runs: rights may have been taken away since."""

from __future__ import annotations

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError

from jobqueue.exceptions import NotAuthorised


def check(permission: str, actor: str) -> None:
    """Raise NotAuthorised unless the actor is an active user who holds the permission now."""
    users = get_user_model()._default_manager
    try:
        user = users.filter(pk=actor).first() if actor else None
    except (ValueError, ValidationError):  # an actor that is no key of a user
        user = None
    if user is None:
        raise NotAuthorised(f"the job needs {permission}, and its actor {actor!r} is no user")
    if not (user.is_active and user.has_perm(permission)):
        raise NotAuthorised(f"the job's actor {actor!r} does not hold {permission}")
