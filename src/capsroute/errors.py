"""Errors that a user can act on. The command line prints them as one line; Python callers can catch them by kind."""

from __future__ import annotations


class CapsrouteError(Exception):
    """What went wrong, with the value, the rule and the way out in one line."""


class DataError(CapsrouteError, ValueError):
    """A data set is missing, damaged or not what it says it is."""


class RunError(CapsrouteError, RuntimeError):
    """A training run cannot start, continue or be read."""
