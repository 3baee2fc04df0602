"""What may go wrong at start-up and is the user's to mend."""

from __future__ import annotations


class ConfigurationError(ValueError):
    """A setting or a file cannot be used. Its text is one line that names the input and the fix; exit status 2."""
