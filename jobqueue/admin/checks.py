"""A system check: whatever can be done in our admin needs a permission that can be given."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from django.apps import apps
from django.contrib.admin.checks import ModelAdminChecks
from django.core import checks


class _Asked:
    """A user who may do nothing, and remembers what they were asked for."""

    is_active = is_staff = True
    is_anonymous = is_superuser = False
    is_authenticated = True
    pk = None

    def __init__(self) -> None:
        self.permissions: set[str] = set()

    def has_perm(self, permission: str, obj: Any = None) -> bool:
        """Remember it, and refuse."""
        self.permissions.add(permission)
        return False


class PermissionChecks(ModelAdminChecks):
    """Django's checks of a model's admin, and that no action is free for all who may look."""

    def check(self, admin_obj: Any, **kwargs: Any) -> list[checks.CheckMessage]:
        """Find actions and operations without a permission, or with one that does not exist."""
        found: list[checks.CheckMessage] = super().check(admin_obj, **kwargs)
        return [*found, *_check_actions(admin_obj), *_check_operations(admin_obj)]


def _check_actions(admin_obj: Any) -> Iterator[checks.CheckMessage]:
    for each in admin_obj.actions or ():
        action = each if callable(each) else getattr(type(admin_obj), each, None)
        label = getattr(action, "__name__", each)
        permissions: list[str] = list(getattr(action, "allowed_permissions", ()))
        if len(permissions) != 1:  # any one of several would be enough
            yield _error(admin_obj, f"its action {label!r} needs one permission, not {permissions}")
            continue
        hook = getattr(admin_obj, f"has_{permissions[0]}_permission", None)
        if hook is None:
            continue  # Django's own check says so
        user = _Asked()
        hook(SimpleNamespace(user=user, method="GET", GET={}, POST={}))
        yield from _check_declared(admin_obj, f"its action {label!r}", user.permissions)


def _check_operations(admin_obj: Any) -> Iterator[checks.CheckMessage]:
    for operation in getattr(admin_obj, "operations", ()):
        permission = f"{admin_obj.opts.app_label}.{operation.permission}"
        yield from _check_declared(admin_obj, f"its operation {operation.name!r}", {permission})


def _check_declared(
    admin_obj: Any, what: str, permissions: set[str]
) -> Iterator[checks.CheckMessage]:
    if not permissions:
        yield _error(admin_obj, f"{what} asks for no permission")
    for permission in sorted(permissions - _declared()):
        yield _error(admin_obj, f"{what} needs {permission!r}, which no model declares")


def _declared() -> set[str]:
    """Return every permission that users can be given."""
    return {
        f"{model._meta.app_label}.{codename}"
        for model in apps.get_models()
        for codename in [
            *(f"{verb}_{model._meta.model_name}" for verb in model._meta.default_permissions),
            *(codename for codename, _ in model._meta.permissions),
        ]
    }


def _error(admin_obj: Any, text: str) -> checks.Error:
    return checks.Error(
        f"{type(admin_obj).__name__}: {text}", obj=type(admin_obj), id="jobqueue.E010"
    )
