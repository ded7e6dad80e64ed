"""The edge, in process: requests through the ASGI application over a hand-written service."""
