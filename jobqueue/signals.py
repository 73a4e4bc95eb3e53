"""What happens, as Django signals: sent with ``send_robust``, so that no receiver can change it.

``started``: a handler is about to be called (``claim``). ``settled``: what became of a claim is in
the database (``settlement``). ``lease_lost``: it was refused, since the lease was lost
(``settlement``). ``group_settled``: the same once for all that were settled together
(``settlements``, and ``recorded``: the keys of those that were not refused; ``using``).
``worker_started``, ``worker_draining`` and ``worker_stopped`` carry ``worker``.
The sender is the :class:`~jobqueue.models.Job` or :class:`~jobqueue.models.Worker` model.
"""

from django.dispatch import Signal

started = Signal(use_caching=True)
settled = Signal(use_caching=True)
lease_lost = Signal(use_caching=True)
group_settled = Signal(use_caching=True)
worker_started = Signal(use_caching=True)
worker_draining = Signal(use_caching=True)
worker_stopped = Signal(use_caching=True)
