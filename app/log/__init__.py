"""The event log: SQL is the record, and every reader reads the bytes that were committed."""
