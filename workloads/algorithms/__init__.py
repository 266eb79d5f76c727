"""Time every convolution algorithm that cuDNN or oneDNN offers, with its workspace."""
