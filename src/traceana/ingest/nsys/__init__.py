"""Nsight Systems: its reports, and its exports to SQLite, Parquet and Arrow."""
