"""Pages of a table that may have millions of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.paginator import Paginator
from django.utils.functional import cached_property

if TYPE_CHECKING:
    _Paginator = Paginator[Any]
else:
    _Paginator = Paginator


class CappedPaginator(_Paginator):
    """Lists the first ``most`` rows, and counts no further than that."""

    most = 10_000

    @cached_property
    def count(self) -> int:
        """How many rows can be listed: all, or ``most``."""
        return min(self._found, self.most)

    @property
    def is_capped(self) -> bool:
        """Whether there are more rows than can be listed."""
        return self._found > self.most

    @cached_property
    def _found(self) -> int:
        rows: Any = self.object_list
        count: int = rows.order_by().values("pk")[: self.most + 1].count()
        return count
