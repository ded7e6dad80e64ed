"""What a server tells of itself: log lines, numbers, trace headers."""
