"""Files of traceana's own: read with typed errors, laid out to be compared, put in place whole."""
