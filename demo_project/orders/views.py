"""The front page, and an address that takes webhooks while the demo's flaky one is away."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST, require_safe

from demo_project.orders.models import Order
from jobqueue.models import DeadLetter, Job


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """Say what this is, how it stands, and where to go."""
    context = {
        "orders": Order.objects.count(),
        "waiting": Job.objects.pending().count() + Job.objects.scheduled().count(),
        "running": Job.objects.claimed().count(),
        "dead": DeadLetter.objects.count(),
    }
    return render(request, "orders/index.html", context)


@csrf_exempt
@require_POST
def webhook(request: HttpRequest) -> JsonResponse:
    """Take any webhook, so that one replayed from the admin arrives somewhere."""
    return JsonResponse({"taken": request.headers.get("Idempotency-Key", "")})
