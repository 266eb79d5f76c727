"""Chrome traces: the stream of events that all JSON formats share, and all readers but Kineto's."""
