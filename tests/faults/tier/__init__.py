"""Faults on real processes. They are collected only with VERBATIM_TEST_FAULTS=1: `make test-faults`."""
