"""Metrics for Prometheus; needs the extra: ``pip install "jobqueue[prometheus]"``.

Include :mod:`jobqueue.contrib.prometheus.urls`, or register
:class:`jobqueue.contrib.prometheus.collector.JobQueueCollector` where the project's own are.
"""

from __future__ import annotations

from importlib.util import find_spec

from django.core.exceptions import ImproperlyConfigured

if find_spec("prometheus_client") is None:
    raise ImproperlyConfigured(
        "jobqueue.contrib.prometheus needs the library prometheus-client: "
        'pip install "jobqueue[prometheus]"'
    )
