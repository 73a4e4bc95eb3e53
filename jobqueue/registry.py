"""Tasks: module-level functions registered under a stable name. No database here."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from types import ModuleType
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, overload

from django.utils.module_loading import autodiscover_modules

from jobqueue import options
from jobqueue.backoff import Backoff, as_backoff
from jobqueue.exceptions import InvalidArguments, InvalidTask, UnknownTask

P = ParamSpec("P")
R = TypeVar("R")
Upgrade = Callable[[int, list[Any], dict[str, Any]], tuple[list[Any], dict[str, Any]]]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Task(Generic[P, R]):
    """A function and how its jobs are run; calling it calls the function, at once and here."""

    function: Callable[P, R]
    #: The name that jobs carry; it must outlive renames of the function.
    name: str
    #: Earlier names, whose jobs this task still runs.
    aliases: tuple[str, ...] = ()
    queue_name: str = "default"
    #: -100 to 100; higher runs first.
    priority: int = 0
    #: None: the MAX_ATTEMPTS setting.
    max_attempts: int | None = None
    #: None: the BACKOFF setting.
    backoff: Backoff | None = None
    #: How long a claim lasts before it must be extended; None: the worker's.
    lease: timedelta | None = None
    #: How long one attempt may take; None: as long as it likes.
    timeout: timedelta | None = None
    #: The version of the payload, to be raised when the arguments change their meaning.
    version: int = 1
    #: Makes a payload of this version from an older one: (version, args, kwargs) to (args, kwargs).
    upgrade: Upgrade | None = None
    #: Pass a JobContext as the first argument, which must be named ``context``.
    takes_context: bool = False
    #: Run the function and its acknowledgement in one transaction on the jobs' database.
    atomic: bool = False
    #: Only these exceptions are retried; empty: all.
    retry_on: tuple[type[BaseException], ...] = ()
    #: These are not retried, even where ``retry_on`` names a base of them.
    give_up_on: tuple[type[BaseException], ...] = ()
    #: The permission ("app.codename") that the job's actor must still hold when the job runs.
    permission: str | None = None
    # Set by using(), for one call rather than for the task:
    run_after: datetime | timedelta | None = None
    actor: str = ""
    correlation_id: str = ""
    #: Trace headers (as of W3C Trace Context) that the job and the jobs it enqueues carry along.
    trace: Mapping[str, str] | None = None
    #: Whether the function is ``async def``; found out, not given.
    is_async: bool = dataclasses.field(init=False, default=False)

    def __post_init__(self) -> None:
        options.check_task(self)
        for attribute in functools.WRAPPER_ASSIGNMENTS:  # what functools.wraps copies
            object.__setattr__(self, attribute, getattr(self.function, attribute, None))
        object.__setattr__(self, "__wrapped__", self.function)
        object.__setattr__(self, "is_async", inspect.iscoroutinefunction(self.function))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now, as if it were no task."""
        return self.function(*args, **kwargs)

    def using(
        self,
        *,
        queue_name: str | None = None,
        priority: int | None = None,
        run_after: datetime | timedelta | None = None,
        max_attempts: int | None = None,
        actor: Any = None,
        correlation_id: str | None = None,
        trace: Mapping[str, str] | None = None,
    ) -> Task[P, R]:
        """Return a copy with these options; what is None stays as it is.

        ``run_after`` is an aware datetime, or a timedelta from now by the database's clock.
        ``actor`` is who asks: a user, or a string that says who. ``trace`` holds trace headers.
        """
        given = {
            "queue_name": queue_name,
            "priority": priority,
            "run_after": run_after,
            "max_attempts": max_attempts,
            "actor": None if actor is None else options.read_actor(actor),
            "correlation_id": correlation_id,
            "trace": trace,
        }
        changes = {key: value for key, value in given.items() if value is not None}
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """Return a call of this task for :func:`jobqueue.enqueue_many`; it is checked there."""
        return Call(self, args, kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Write a job in the caller's transaction and return it, a :class:`~jobqueue.models.Job`.

        Raise InvalidJob, before any SQL, for arguments or options that could not be kept.
        """
        from jobqueue import lifecycle  # the app registry may not be ready when tasks are imported

        return lifecycle.enqueue(Call(self, args, kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Do what :meth:`enqueue` does, from async code; joins a transaction of the same thread."""
        from asgiref.sync import sync_to_async

        return await sync_to_async(self.enqueue, thread_sensitive=True)(*args, **kwargs)

    def check_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise InvalidArguments unless the function can be called with these."""
        shape = _shape(self.function, takes_context=self.takes_context)
        if not kwargs and shape.least <= len(args) <= shape.most:
            return
        try:
            shape.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArguments(f"the arguments do not fit {self.name}: {error}") from None


class _Shape(NamedTuple):
    """What a job's arguments must fit: the function's signature, less the context."""

    signature: inspect.Signature
    # How many arguments fit when all are given by position; least is above most when none do.
    least: int
    most: int


@functools.cache
def _shape(function: Callable[..., Any], *, takes_context: bool) -> _Shape:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[int(takes_context) :]
    positional = [each for each in parameters if each.kind <= each.POSITIONAL_OR_KEYWORD]
    needed = [each for each in parameters if each.default is each.empty]
    least = sum(each.kind <= each.POSITIONAL_OR_KEYWORD for each in needed)
    if any(each.kind == each.KEYWORD_ONLY for each in needed):
        least = len(positional) + 1
    return _Shape(signature.replace(parameters=parameters), least, len(positional))


class Call(NamedTuple):
    """A task and the arguments of one job to be."""

    task: Task[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]


tasks: dict[str, Task[..., Any]] = {}


def get(name: str) -> Task[..., Any]:
    """Return the task registered under ``name``; raise UnknownTask when there is none."""
    try:
        return tasks[name]
    except KeyError:
        raise UnknownTask(f"no task is registered under the name {name!r}") from None


def leases() -> dict[str, float]:
    """Return the names of the tasks that set a lease of their own, with it in seconds."""
    return {name: task.lease.total_seconds() for name, task in tasks.items() if task.lease}


def register(task: Task[..., Any]) -> None:
    """Make the task known by its name and aliases; raise InvalidTask when one is taken."""
    for name in (task.name, *task.aliases):
        if not _NAME.fullmatch(name):
            raise InvalidTask(f"{name!r} cannot name {_place(task)}: use letters, digits and _.:/-")
        other = tasks.get(name)
        if other and not _is_same_code(other, task):
            raise InvalidTask(
                f"two tasks are named {name!r}: {_place(other)} and {_place(task)}; "
                "give one of them another name=..."
            )
    for name in (task.name, *task.aliases):
        tasks[name] = task


def _is_same_code(one: Task[..., Any], other: Task[..., Any]) -> bool:
    return _place(one) == _place(other)


def _place(task: Task[..., Any]) -> str:
    function = inspect.unwrap(task.function)
    code = function.__code__
    return f"{function.__qualname__} ({code.co_filename}:{code.co_firstlineno})"


def _check_is_module_level(function: Any) -> None:
    unwrapped = inspect.unwrap(function)
    if not inspect.isfunction(unwrapped):
        raise InvalidTask(f"{function!r} is not a function; @task takes module-level functions")
    if "." in unwrapped.__qualname__ or unwrapped.__name__ == "<lambda>":
        raise InvalidTask(
            f"{unwrapped.__module__}.{unwrapped.__qualname__} is not a module-level function"
        )


@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(**kwargs: Any) -> Callable[[Callable[..., R]], Task[..., R]]: ...
def task(function: Callable[..., Any] | None = None, /, **kwargs: Any) -> Any:
    """Register a module-level function as a task; the options are the fields of :class:`Task`.

    ``lease`` and ``timeout`` are timedeltas; ``backoff`` is a timedelta, a sequence of them or a
    function from the failed attempt's number to one. Raise InvalidTask for a function that is not
    module-level, an option that makes no sense, or a name that another task has.
    """
    if function is None:
        return functools.partial(task, **kwargs)
    _check_is_module_level(function)
    name = kwargs.pop("name", None) or f"{function.__module__}.{function.__qualname__}"
    for key in ("retry_on", "give_up_on", "aliases"):
        if key in kwargs:
            kwargs[key] = _as_tuple(kwargs[key])
    if kwargs.get("backoff") is not None:
        kwargs["backoff"] = as_backoff(kwargs["backoff"])
    made: Task[..., Any] = Task(function=function, name=name, **kwargs)
    register(made)
    return made


def _as_tuple(value: Any) -> tuple[Any, ...]:
    """Read an option that takes one or several: a name, an exception class, or a sequence."""
    return tuple(value) if isinstance(value, list | tuple | set | frozenset) else (value,)


def autodiscover() -> list[ModuleType] | None:
    """Import the ``tasks`` module of every installed app; an error in one of them propagates."""
    return autodiscover_modules("tasks")  # type: ignore[func-returns-value]
