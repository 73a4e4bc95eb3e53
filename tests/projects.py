"""Small projects in folders of their own, to see how jobqueue does in other settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from demo_project.database import CHECKOUT


class Project:
    """A small project in a folder of its own, to see how it starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("shop/__init__.py", "")
        self.settings()

    def settings(self, *, apps: tuple[str, ...] = ("jobqueue", "shop"), more: str = "") -> None:
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(self.folder / "db")}
        self.write(
            "settings.py",
            f"SECRET_KEY = 'x'\nINSTALLED_APPS = {list(apps)}\nUSE_TZ = True\n"
            f"DATABASES = {{'default': {database}}}\n{more}",
        )

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", "-m", "django", *arguments],
            cwd=self.folder,
            env=os.environ
            | {
                "PYTHONPATH": f"{self.folder}{os.pathsep}{CHECKOUT}",
                "DJANGO_SETTINGS_MODULE": "settings",
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
