"""What templates of the admin ask for themselves: the figures, and the way back."""

from __future__ import annotations

from typing import Any, NamedTuple

import django
from django import template
from django.contrib.admin import AdminSite
from django.contrib.admin.sites import all_sites
from django.db.models.options import Options
from django.http import HttpRequest
from django.urls import reverse
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from jobqueue.admin import display, figures
from jobqueue.models import Overview

register = template.Library()


class Breadcrumbs(NamedTuple):
    """The way back, and whether this Django writes it as a list."""

    links: list[tuple[str, str]]
    is_numbered: bool


@register.simple_tag(takes_context=True)
def overview_strip(context: template.Context) -> dict[str, Any] | None:
    """Return the figures and the address of the overview; None for who may not see it."""
    request: HttpRequest = context["request"]
    site = _site(request)
    if not (site and display.may_view(request, site, Overview)):
        return None
    return {"strip": figures.strip(request, site), "url": display.list_url(site, Overview)}


@register.simple_tag(takes_context=True)
def breadcrumbs(
    context: template.Context, opts: Options[Any], *, is_list: bool = False
) -> Breadcrumbs:
    """Return the way back from a page of the model: to its list too, for who may see that."""
    request: HttpRequest = context["request"]
    app = getattr(request, "current_app", None)
    links = [
        (_("Home"), reverse("admin:index", current_app=app)),
        (
            str(opts.app_config.verbose_name),
            reverse("admin:app_list", kwargs={"app_label": opts.app_label}, current_app=app),
        ),
    ]
    site = _site(request)
    if site and not is_list and display.may_view(request, site, opts.model):
        links.append((capfirst(str(opts.verbose_name_plural)), display.list_url(site, opts.model)))
    return Breadcrumbs(links, is_numbered=django.VERSION >= (6, 1))


def _site(request: HttpRequest) -> AdminSite | None:
    """Return the admin site that renders the page: it leaves its name, and nothing else."""
    name = getattr(request, "current_app", None)
    return next((site for site in all_sites if site.name == name), None)
