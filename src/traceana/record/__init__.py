"""``traceana record``: runs a workload or a user's script under a profiler, into a run's folder.

``inside/`` is what runs in the recorded process. It needs the standard library alone, for the
script's Python need not have traceana.
"""
