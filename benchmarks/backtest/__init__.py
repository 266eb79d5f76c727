"""Predictions of ``traceana whatif`` against what happened: ``python -m benchmarks.backtest``."""
