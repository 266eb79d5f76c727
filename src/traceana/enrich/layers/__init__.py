"""Which layer of the model every operator and every activity belongs to."""
