"""The Nsight Systems reader: SQLite exports of ``nsys export --type sqlite``, schema 2 and 3."""
