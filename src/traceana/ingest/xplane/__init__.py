"""XPlane: what the profilers of TensorFlow and JAX write (``*.xplane.pb``)."""
