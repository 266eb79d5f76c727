"""The adapters that describe a live model as a manifest of its layers.

``live_model.py`` has :func:`traceana.describe`, and alone imports the adapters: ``pytorch.py``,
``keras.py``, ``flax.py`` and ``jax_function.py``. A report loads none of them. The manifest is
:mod:`traceana.runs.layer_manifest`.
"""
