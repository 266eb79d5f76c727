"""MXNet's profiler: a Chrome trace of operators as its engine ran them."""
