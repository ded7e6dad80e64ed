"""The models of the real-vLLM tier: built by scripts into the cache folder, never committed."""
