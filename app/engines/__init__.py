"""Engines: tokens (or chat chunks) for a prompt."""
