"""Chrome trace files other than Kineto's: TensorFlow's and JAX's, and any other program's."""
