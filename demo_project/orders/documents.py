"""Delivery notes: the same order gives the same bytes under the same name, every time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from django.conf import settings

if TYPE_CHECKING:
    from demo_project.orders.models import Order


def name(order: Order) -> str:
    """Return where the delivery note of an order lies within the media folder."""
    return f"documents/{order.reference}.txt"


def render(order: Order) -> bytes:
    """Return the delivery note of an order."""
    lines = [f"Delivery note {order.reference}", f"for {order.customer.name}", ""]
    lines += [
        f"{line.quantity:4} x {line.article:20} {line.price:>10}"
        for line in order.lines.order_by("pk")
    ]
    lines += ["", f"Total {order.total:.2f}", ""]
    return "\n".join(lines).encode()


def write(name: str, content: bytes) -> None:
    """Write a file in the media folder so that it is there whole or not at all."""
    path = Path(settings.MEDIA_ROOT) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}-{os.urandom(4).hex()}.draft")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
