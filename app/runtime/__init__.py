"""Who does the work, and when."""
