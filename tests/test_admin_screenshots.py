"""The pictures of the documentation, taken of real pages: ``--screenshots docs/images``."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.urls import reverse

from jobqueue.models import DeadLetter
from tests import outage
from tests.browser import BrowserTestCase, superuser

TALLEST = 1100


class TestPictures(BrowserTestCase):
    @pytest.fixture(autouse=True)
    def folder_of_pictures(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.folder = request.config.getoption("screenshots") or tmp_path
        self.folder.mkdir(exist_ok=True)

    def setUp(self) -> None:
        super().setUp()
        self.letter = outage.write()
        self.log_in(superuser("alice"))

    def take(self, name: str, *, tallest: int = TALLEST) -> None:
        self.save_picture(self.folder / f"{name}.png", tallest=tallest)

    def test_are_taken(self) -> None:
        self.open(reverse("admin:jobqueue_overview_changelist") + "?refresh=0")
        assert self.has("svg")
        self.take("overview", tallest=2000)
        self.prefer("dark")
        self.take("overview-dark", tallest=2000)
        self.prefer("light")

        self.open(reverse("admin:jobqueue_deadletter_groups"))
        self.take("dead-letters-by-error")
        self.press_link("Replay")
        largest = DeadLetter.objects.filter(fingerprint=self.letter.fingerprint).count()
        assert f"{largest} dead letters would go" in self.text
        self.fill(rate=20, reason="the carrier is back")
        self.take("dry-run")

        self.open(reverse("admin:jobqueue_deadletter_change", args=[self.letter.pk]))
        self.take("dead-letter", tallest=1500)
        self.open(reverse("admin:jobqueue_lease_changelist"))
        self.take("leases", tallest=850)
        assert self.complaints() == []
