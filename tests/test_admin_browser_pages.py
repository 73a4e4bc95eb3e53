"""Every page of the admin in a real browser: its policy, its colours, its width and its keys."""

from __future__ import annotations

import json
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import django
from django.conf import settings
from django.contrib.auth.models import User
from django.test import override_settings
from django.urls import reverse

from demo_project.orders.bench.pages import Page, every_page
from jobqueue import lifecycle
from jobqueue.models import BulkOperation, DeadLetter
from tests.browser import CONTROL, BrowserTestCase, Keys, action_chains, superuser
from tests.factories import DeadLetterFactory
from tests.populated import populate

AXE = Path(__file__).parent / "vendor" / "axe-core" / "axe.min.js"
#: WCAG 2.2 AA, and what axe calls best practice. Style sheets are not fetched: the policy forbids
#: it.
AXE_OPTIONS = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "preload": False,
    "resultTypes": ["violations"],
}
RUN_AXE = """
const done = arguments[arguments.length - 1];
// axe names an element as briefly as it can: say so if it stands among the breadcrumbs.
const whole = target => document.querySelector(target)?.closest('.breadcrumbs')
    ? `.breadcrumbs ${target}` : target;
axe.run(document, arguments[0]).then(
    found => done(found.violations.flatMap(each => each.nodes.map(
        node => [each.id, whole(node.target.join(' ')), node.failureSummary]))),
    error => done([['axe itself', '', String(error)]]));
"""
NARROW = 500
#: Elements that stick out of the page, so that one would have to scroll sideways.
TOO_WIDE = """
const root = document.documentElement;
return root.scrollWidth <= root.clientWidth ? [] : [...document.querySelectorAll('body *')]
    .filter(each => each.getBoundingClientRect().right > root.clientWidth + 1)
    .slice(0, 5).map(each => each.outerHTML.slice(0, 100));
"""
#: What the keyboard must reach; of a group of radio buttons it reaches one.
COUNT_CONTROLS = """
window.controls = new Set([...document.querySelectorAll(
    'a[href], button, input:not([type=hidden]), select, textarea, summary')]
    .filter(each => each.checkVisibility({visibilityProperty: true}) && !each.disabled
        && each.type !== 'radio'));
const total = window.controls.size;
document.addEventListener('focusin', event => window.controls.delete(event.target));
return total;
"""
UNREACHED = "return [...window.controls].map(each => each.outerHTML.slice(0, 100))"
BACKGROUND = "return getComputedStyle(document.body).backgroundColor"


class Known(NamedTuple):
    """A complaint of axe about Django's own pages, which is not ours to mend."""

    rule: str
    target: str
    reason: str


KNOWN = [
    Known(
        "link-in-text-block",
        ".breadcrumbs",
        "Django's breadcrumbs are white on a colour, links and text alike, and stand in a row.",
    ),
    Known(
        "label-title-only",
        "#searchbar",
        "Django's search box is labelled by the picture before it, and by a title.",
    ),
]


class TestEveryPage(BrowserTestCase):
    def setUp(self) -> None:
        super().setUp()
        populate()
        self.client = self.log_in(superuser())

    def pages(self, *, choices: int = 1) -> Iterator[Page]:
        """Open one page after the other."""
        for page in every_page(self.client, choices=choices):
            self.open(page.url)
            yield page

    def test_keeps_to_the_policy(self) -> None:
        for page in self.pages(choices=10):
            assert self.complaints() == [], page

    def test_that_breaks_the_policy_would_be_noticed(self) -> None:
        self.open(CONTROL)
        [complaint] = self.complaints()
        assert "Content Security Policy" in complaint

    def test_keeps_to_the_policy_when_it_is_empty_or_an_error(self) -> None:
        DeadLetter.objects.all().delete()
        for url in ("?", "?q=nothing&task=none", "999999/change/"):
            self.open(reverse("admin:jobqueue_deadletter_changelist") + url)
            assert self.complaints() == [], url

    def test_has_nothing_to_scroll_sideways_on_a_small_screen(self) -> None:
        self.resize(NARROW, 900)
        for page in self.pages():
            assert self.script(TOO_WIDE) == [], page

    def test_is_clean_for_axe_by_day(self) -> None:
        self.assert_clean_for_axe()

    def test_is_clean_for_axe_by_night(self) -> None:
        self.prefer("dark")
        self.assert_clean_for_axe()

    def assert_clean_for_axe(self) -> None:
        source = AXE.read_text()
        found: dict[tuple[str, str], list[str]] = {}
        for page in self.pages():
            # Not as an element of the page, which the policy would have to allow.
            self.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": source})
            for rule, target, summary in self.driver.execute_async_script(RUN_AXE, AXE_OPTIONS):
                if not any(rule == each.rule and each.target in target for each in KNOWN):
                    found.setdefault((rule, target), [summary]).append(page.name)
            assert self.complaints() == [], page
        assert not found, json.dumps([[*key, *names] for key, names in found.items()], indent=1)

    def test_is_dark_when_the_system_is_and_when_it_is_asked_to_be(self) -> None:
        for page in self.pages():
            self.prefer("light")
            light = self.script(BACKGROUND)
            self.prefer("dark")
            assert self.script(BACKGROUND) != light, page
        dark = self.script(BACKGROUND)
        self.prefer("light")
        self.open(reverse("admin:jobqueue_job_changelist"))
        toggle = self.find(".theme-toggle")
        for _ in range(3):  # automatic, light, dark, in an order that depends on the system
            toggle.click()
            if self.script("return document.documentElement.dataset.theme") == "dark":
                break
        assert self.script(BACKGROUND) == dark

    def test_lets_the_keyboard_reach_every_control(self) -> None:
        for page in self.pages():
            total = self.script(COUNT_CONTROLS)
            assert total, page
            # Some more than there are: some stand in the browser itself, some are radio buttons.
            action_chains(self.driver).send_keys(Keys.TAB * (total + 10)).perform()
            assert self.script(UNREACHED) == [], page


class TestWithoutJavaScript(BrowserTestCase):
    user: User

    def setUp(self) -> None:
        super().setUp()
        self.log_in(superuser())
        self.use_javascript(False)

    def test_no_script_runs(self) -> None:
        self.open(reverse("admin:jobqueue_job_changelist"))
        assert self.has("noscript") is False or self.script("return !window.django")

    def test_all_that_match_are_discarded(self) -> None:
        for _ in range(105):
            DeadLetterFactory()
        self.open(reverse("admin:jobqueue_deadletter_changelist"))
        self.find("input.action-select").click()
        self.find("noscript input[name=select_across]").click()
        self.choose("discard")
        assert "105 dead letters would go" in self.text
        self.fill(reason="sent by hand")
        self.press("input[type=submit]")
        assert "105 dead letters will be discarded" in self.text
        while lifecycle.bulk.advance() is not None:
            BulkOperation.objects.update(rate=None)
        self.reload_until("105 of 105 done")
        assert not DeadLetter.objects.open().exists()
        assert self.complaints() == []

    def test_every_page_can_be_read(self) -> None:
        populate()
        client = self.log_in(User.objects.get())
        for page in every_page(client, choices=1):
            self.open(page.url)
            assert self.find("#content h1, #site-name, #content").text, page
            assert self.complaints() == [], page


@unittest.skipUnless(django.VERSION >= (6, 1), "the admin marks its scripts from 6.1 on")
@override_settings(
    MIDDLEWARE=["django.middleware.csp.ContentSecurityPolicyMiddleware", *settings.MIDDLEWARE],
    TEMPLATES=[
        settings.TEMPLATES[0]
        | {
            "OPTIONS": {
                "context_processors": [
                    *settings.TEMPLATES[0]["OPTIONS"]["context_processors"],
                    "django.template.context_processors.csp",
                ]
            }
        }
    ],
    SECURE_CSP={
        "default-src": ["'none'"],
        "script-src": ["<CSP_NONCE_SENTINEL>", "'strict-dynamic'"],
        "style-src": ["'self'"],
        "img-src": ["'self'", "data:"],
        "form-action": ["'self'"],
    },
)
class TestUnderAPolicyOfNonces(BrowserTestCase):
    """The other strict policy: scripts run that the server marked, wherever they come from."""

    def test_every_page_keeps_to_it(self) -> None:
        populate()
        for page in every_page(self.log_in(superuser()), choices=1):
            self.open(page.url)
            assert self.complaints() == [], page


def test_what_axe_may_complain_of_has_a_reason() -> None:
    assert all(each.reason.endswith(".") for each in KNOWN)
