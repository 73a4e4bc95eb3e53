"""A real browser on a live server: the base of every test that looks at a page as people do.

class TestSomething(BrowserTestCase):
    def test_it(self) -> None:
        self.log_in(superuser())
        self.open(reverse("admin:index"))
        self.press("a.somewhere")
        assert "what is there" in self.text
        assert self.complaints() == []
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.contrib.staticfiles.testing import StaticLiveServerTestCase
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings

from tests.processes import PATIENCE

webdriver = pytest.importorskip("selenium.webdriver")
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
action_chains = pytest.importorskip("selenium.webdriver").ActionChains
ui = pytest.importorskip("selenium.webdriver.support.ui")
WebDriverException = pytest.importorskip("selenium.common.exceptions").WebDriverException

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
CHROMEDRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",  # which is small in containers
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-device-scale-factor=1",
    "--hide-scrollbars",
)
#: So often Chromium may fail to start, as it does on a machine that is busy with other things.
MOST_STARTS = 3
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
    "font-src 'self'; form-action 'self'"
)
#: A page that breaks the policy, to show that it would be noticed.
CONTROL = "/breaks-the-policy/"
WIDTH, HEIGHT = 1400, 1000
#: Whether the page that was marked as old has gone, and its successor is complete.
IS_NEW = "return !window.isOld && document.readyState === 'complete'"


class StrictPolicy:
    """Sends the policy with every page."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.path == CONTROL:
            response = HttpResponse("<script>alert(1)</script>")
        else:
            response = self.get_response(request)
        response["Content-Security-Policy"] = POLICY
        return response


def superuser(name: str = "operator") -> User:
    return User.objects.create_superuser(name, password="secret")


def staff(name: str, *codenames: str) -> User:
    """Create a user of the admin with these permissions of the queue, and no others."""
    user = User.objects.create_user(name, password="secret", is_staff=True)
    found = Permission.objects.filter(content_type__app_label="jobqueue", codename__in=codenames)
    assert {each.codename for each in found} == set(codenames)
    user.user_permissions.set(found)
    return user


@pytest.mark.browser
@pytest.mark.skipif(not (CHROMIUM and CHROMEDRIVER), reason="needs Chromium and its driver")
@override_settings(
    MIDDLEWARE=[f"{__name__}.StrictPolicy", *settings.MIDDLEWARE], ALLOWED_HOSTS=["*"]
)
class BrowserTestCase(StaticLiveServerTestCase):
    """One browser for the tests of a class; each of them begins logged out, in the light."""

    driver: ClassVar[Any]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.driver = start_driver()
        cls.addClassCleanup(stop_driver, cls.driver)

    def setUp(self) -> None:
        self.driver.get("about:blank")  # what the last test left there may refresh itself
        self.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
        self.driver.execute_cdp_cmd(
            "Storage.clearDataForOrigin",
            {"origin": self.live_server_url, "storageTypes": "local_storage"},
        )
        self.use_javascript(True)
        self.prefer("light")
        self.resize(WIDTH, HEIGHT)
        self.driver.get_log("browser")  # what came before is another test's

    def log_in(self, user: User) -> Client:
        """Be that user in the browser from now on; return a client that is the same user."""
        client = Client()
        client.force_login(user)
        name = settings.SESSION_COOKIE_NAME
        cookie = {"name": name, "value": client.cookies[name].value, "url": self.live_server_url}
        assert self.driver.execute_cdp_cmd("Network.setCookie", cookie)["success"]
        return client

    def use_javascript(self, enabled: bool) -> None:  # noqa: FBT001 - reads as a switch
        """Let pages that are opened from now on run scripts, or not."""
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not enabled})

    def prefer(self, scheme: str) -> None:
        """Say that the visitor prefers a "light" or a "dark" page, as their system would."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def resize(self, width: int, height: int) -> None:
        """Give the page so much room."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def open(self, path: str) -> None:
        self.driver.get(self.live_server_url + path)

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def has(self, selector: str) -> bool:
        return bool(self.driver.find_elements("css selector", selector))

    def field(self, name: str) -> Any:
        return self.driver.find_element("name", name)

    def fill(self, **values: object) -> None:
        """Fill in fields, by their names; a list of choices by the value."""
        for name, value in values.items():
            field = self.field(name)
            if field.tag_name == "select":
                ui.Select(field).select_by_value(str(value))
            else:
                field.clear()
                field.send_keys(str(value))

    def press(self, selector: str) -> None:
        """Press what leads to another page, and wait until that is there."""
        self.press_element(self.find(selector))

    def press_link(self, text: str) -> None:
        """Press the first link with this text, and wait for the other page."""
        self.press_element(self.driver.find_element("partial link text", text))

    def press_button(self, text: str) -> None:
        """Press the button with this text, whatever kind of button it is."""
        path = f"//button[normalize-space()='{text}'] | //input[@type='submit'][@value='{text}']"
        self.press_element(self.driver.find_element("xpath", path))

    def press_element(self, element: Any) -> None:
        """Press what leads to another page, and wait until that is there.

        The old page carries a mark: to ask after one of its elements while it is being replaced is
        an error of the driver's own now and then.
        """
        self.driver.execute_script("window.isOld = true")
        element.click()
        self.wait_until(lambda: self.script(IS_NEW), doing="the next page")

    def choose(self, action: str) -> None:
        """Do an action of a list to what is picked there."""
        self.fill(action=action)
        self.press("button[name=index]")

    def script(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait_until(self, fact: Callable[[], Any], *, doing: str) -> Any:
        """Wait for a fact; what the driver complains of meanwhile is a page that comes or goes."""
        wait = ui.WebDriverWait(
            self.driver, 2 * PATIENCE, 0.1, ignored_exceptions=[WebDriverException]
        )
        return wait.until(lambda _: fact(), f"waited in vain for {doing}")

    def wait_for(self, text: str) -> None:
        """Wait until the page, which may refresh itself, shows a text."""
        self.wait_until(lambda: text in self._text_now(), doing=f"{text!r} on {self.path}")

    def reload_until(self, text: str) -> None:
        """Load the page anew until it shows a text, as one does who waits for it."""

        def shows() -> bool:
            self.driver.refresh()
            return text in self._text_now()

        self.wait_until(shows, doing=f"{text!r} on {self.path}")

    def _text_now(self) -> str:
        return str(self.script("return document.body.innerText"))

    @property
    def text(self) -> str:
        """What the page shows; a page that refreshes itself may be gone at the first look."""
        return str(self.wait_until(self._text_now, doing="a text"))

    @property
    def path(self) -> str:
        return str(self.driver.current_url.removeprefix(self.live_server_url))

    def save_picture(self, path: Path, *, tallest: int) -> None:
        """Save a picture of the page from its top, as tall as the page is but for a limit."""
        height = self.script("return document.documentElement.scrollHeight")
        self.resize(WIDTH, min(max(height, 300), tallest))
        assert self.driver.save_screenshot(str(path))
        self.resize(WIDTH, HEIGHT)

    def complaints(self) -> list[str]:
        """Return what the browser complained of, but for the icon that the demo has not."""
        entries = self.driver.get_log("browser")
        return [each["message"] for each in entries if "/favicon.ico" not in each["message"]]


def start_driver() -> Any:
    """Start Chromium with a profile of its own; where it does not come up, try again."""
    for number in range(1, MOST_STARTS + 1):
        profile = tempfile.mkdtemp(prefix="chromium-")
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        for flag in (*FLAGS, f"--window-size={WIDTH},{HEIGHT}", f"--user-data-dir={profile}"):
            options.add_argument(flag)
        try:
            driver = webdriver.Chrome(options, webdriver.ChromeService(CHROMEDRIVER))
        except WebDriverException:
            shutil.rmtree(profile, ignore_errors=True)
            if number == MOST_STARTS:
                raise
            continue
        driver.profile = Path(profile)
        return driver
    raise AssertionError("unreachable")


def stop_driver(driver: Any) -> None:
    """End Chromium and forget its profile."""
    driver.quit()
    shutil.rmtree(driver.profile, ignore_errors=True)
