"""Steps, waits, idle time and the critical path: one idea of time for all commands.

Others begin with ``work.work``, ``steps.steps``, ``steps.measured`` and ``steps.select``,
``copies.copies``, ``idle.idle``, ``critical.critical``, and ``graph.Graph``, which whatif replays.
"""
