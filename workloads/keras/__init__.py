"""The workloads in Keras on TensorFlow."""
