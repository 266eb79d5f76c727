"""CUDA graphs: :func:`traceana.enrich.graphs.replays.of_replays` attributes the work of replays."""
