"""What happens, as Django signals; they are sent with ``send_robust``, so no receiver can change it.

``started``: a handler is about to be called (``claim``). ``settled``: what became of a claim is in
the database (``settlement``). ``lease_lost``: it was refused, since the lease was lost
(``settlement``). ``worker_started``, ``worker_draining`` and ``worker_stopped`` carry ``worker``.
The sender is the :class:`~jobqueue.models.Job` or :class:`~jobqueue.models.Worker` model.
"""

from django.dispatch import Signal

started = Signal()
settled = Signal()
lease_lost = Signal()
worker_started = Signal()
worker_draining = Signal()
worker_stopped = Signal()
