"""The page that Prometheus scrapes."""

from __future__ import annotations

from threading import Lock

from django.contrib.auth.decorators import login_not_required
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from jobqueue.contrib.prometheus.access import is_allowed
from jobqueue.contrib.prometheus.collector import PATIENCE, JobQueueCollector

#: While the database is slow, scrapes take up one thread of the process rather than all of them.
_one_at_a_time = Lock()


@login_not_required  # a scraper has no session: its token, or where it comes from, decides
@require_safe
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer with the metrics; with 403 to whom they do not concern, with 503 when there are none.

    Parameters are not looked at, nor are sessions and cookies.
    """
    if not is_allowed(request):
        return _say(403, "forbidden")
    if not _one_at_a_time.acquire(timeout=PATIENCE):
        return _say(503, "another scrape is under way")
    try:
        return _scrape(request.headers.get("Accept", ""))
    finally:
        _one_at_a_time.release()


# Django would open the transaction before the view, and fail there when the database is away.
for _alias in connections:
    metrics = transaction.non_atomic_requests(using=_alias)(metrics)


def _scrape(accept: str) -> HttpResponse:
    registry, collector = CollectorRegistry(), JobQueueCollector()
    registry.register(collector)
    encode, content_type = choose_encoder(accept)
    body = encode(registry)
    if collector.is_blind:
        return _say(503, "the database could not be read")
    return HttpResponse(body, content_type=content_type)


def _say(status: int, text: str) -> HttpResponse:
    answer = HttpResponse(f"{text}\n", status=status, content_type="text/plain; charset=utf-8")
    # Django would log each as an error of a request, and mail it to the admins: one a scrape.
    answer._has_been_logged = True  # type: ignore[attr-defined]  # noqa: SLF001
    return answer
