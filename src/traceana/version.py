"""The version of the package, which the build and the release read here."""

__version__ = "0.1.0"
