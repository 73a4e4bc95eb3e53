"""What the index of the app in the admin shows of it."""

from __future__ import annotations

from typing import Any

import django
from django import template
from django.contrib.admin import AdminSite
from django.contrib.admin.sites import all_sites
from django.http import HttpRequest

from jobqueue.admin import display, figures
from jobqueue.models import Overview

register = template.Library()


@register.simple_tag(takes_context=True)
def overview_strip(context: template.Context) -> dict[str, Any] | None:
    """Return the figures and the address of the overview; None for who may not see it."""
    request: HttpRequest = context["request"]
    site = _site(request)
    if not (site and display.may_view(request, site, Overview)):
        return None
    return {"strip": figures.strip(request, site), "url": display.list_url(site, Overview)}


@register.simple_tag
def breadcrumbs_are_a_list() -> bool:
    """Return whether this Django shows where one is as a list, rather than in a row of links."""
    return django.VERSION >= (6, 1)


def _site(request: HttpRequest) -> AdminSite | None:
    """Return the admin site that renders the page: it leaves its name, and nothing else."""
    name = getattr(request, "current_app", None)
    return next((site for site in all_sites if site.name == name), None)
