"""The core: pure, synchronous functions over events. No clock, no randomness, no I/O."""
