"""Renderers: from the results of analyses to text and bytes. They compute no figure."""
