"""Tests of the embedded server."""
