"""Folders and lists of files: the recordings of one distributed run, one a rank."""
