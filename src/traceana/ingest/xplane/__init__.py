"""XPlane, the format of TensorFlow's and JAX's profilers (``*.xplane.pb``)."""
