from tests import tasks
def test_x(worker_process, marks):
    import time
    t=time.monotonic()
    job = tasks.slow.enqueue(1.0, marks=marks.path)
    w = worker_process("--poll-interval","0.1")
    print("started", time.monotonic()-t)
    marks.wait_for("start")
    t=time.monotonic()
    import signal
    w.signal(signal.SIGTERM)
    print("exit", w.wait(), time.monotonic()-t)
    import resource
    print(resource.getrusage(resource.RUSAGE_CHILDREN))
    print(w.output)
    from jobqueue.models import Worker
    print(list(Worker.objects.values()))
