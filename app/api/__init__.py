"""The edge: HTTP in, frozen requests out; stored bytes in, SSE frames out."""
