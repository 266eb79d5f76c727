"""A campaign of damaged and hostile inputs: ``python -m tests.fuzz``, described in
docs/reliability.md.
"""
