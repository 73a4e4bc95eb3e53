"""The demo's pages: a front page, the admin, the metrics, and an address that takes webhooks."""

from django.conf import settings
from django.conf.urls.static import static
from django.contrib import admin
from django.urls import include, path

from demo_project.orders import views

urlpatterns = [
    path("", views.index, name="index"),
    path("webhook/", views.webhook, name="webhook"),
    # For Prometheus; only this machine may read it, since settings.py sets no METRICS_TOKEN.
    path("metrics/jobqueue", include("jobqueue.contrib.prometheus.urls")),
    path("admin/", admin.site.urls),
    *static(settings.MEDIA_URL, document_root=settings.MEDIA_ROOT),  # only with DEBUG
]
