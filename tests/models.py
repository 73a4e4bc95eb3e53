"""What the tests' handlers write."""

from django.db import models


class Mark(models.Model):
    """A row that some handler wrote: there if and only if its transaction committed."""

    key = models.CharField(max_length=100)
    value = models.TextField(default="")

    def __str__(self) -> str:
        return f"{self.key}={self.value}"
