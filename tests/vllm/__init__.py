"""Tests against a real vLLM on the CPU. They are collected only with VERBATIM_TEST_VLLM=1: `make test-vllm`."""
