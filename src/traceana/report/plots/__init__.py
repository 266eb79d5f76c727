"""Pictures of studies: what is drawn (:mod:`.picture`), and drawing it with matplotlib."""
