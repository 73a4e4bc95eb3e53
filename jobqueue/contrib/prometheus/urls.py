"""One address, wherever the project includes it."""

from __future__ import annotations

from django.urls import path

from jobqueue.contrib.prometheus import views

urlpatterns = [path("", views.metrics, name="jobqueue_metrics")]
