"""Servers that tests run against."""
