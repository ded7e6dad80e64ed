"""Train a tiny gpt_oss model on the scenarios and save it as a folder that vLLM serves.

Runs in the vLLM environment: `python -m tests.vllm.models.build_gpt_oss MODEL_FOLDER VOCABULARY_FOLDER`.

It trains on a compact vocabulary: the tokens of the scenarios, and one more that stands for all other tokens. Saving
spreads that one over the whole embedding and gives those tokens an output row of zeros, so their logit is 0. The loss
counts them as exactly that: training on the compact vocabulary is training on all 201,088 tokens, only far faster.
"""

import json
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch
from openai_harmony import HarmonyEncoding, HarmonyEncodingName, load_harmony_encoding
from transformers import GptOssConfig, GptOssForCausalLM

from tests.vllm.models.conversations import Lesson, Teacher
from tests.vllm.models.vocabulary import RANK_FILE, VOCABULARY_SIZE, save_tokenizer

STEPS: Final = 1200
BATCH: Final = 8
STORY_EVERY: Final = 4
WARM_UP: Final = 60
LEARNING_RATE: Final = 4e-3
ROUNDS: Final = 3
EXAMINATIONS: Final = 12
MARGIN: Final = 1.0
GENERATION: Final = {
    "bos_token_id": 199998,
    "do_sample": True,
    "eos_token_id": [200002, 199999, 200012],
    "pad_token_id": 199999,
}
"""As the real gpt-oss ships it: `<|call|>` ends a generation by itself."""


def configuration(vocabulary_size: int) -> GptOssConfig:
    """gpt_oss as small as it gets with all its parts: sinks, experts, sliding and full attention."""
    return GptOssConfig(
        num_hidden_layers=2,
        hidden_size=64,
        intermediate_size=64,
        num_local_experts=4,
        num_experts_per_tok=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=vocabulary_size,
        max_position_embeddings=4096,
        sliding_window=128,
        layer_types=["sliding_attention", "full_attention"],
        eos_token_id=200002 if vocabulary_size == VOCABULARY_SIZE else None,
        pad_token_id=199999 if vocabulary_size == VOCABULARY_SIZE else None,
        attn_implementation="eager",
    )


class Compact:
    """The compact vocabulary: known tokens by index, all others as the last index."""

    def __init__(self, lessons: list[Lesson]) -> None:
        self.known = sorted({token for lesson in lessons for token in (*lesson.prompt, *lesson.completion)})
        self.index = {token: i for i, token in enumerate(self.known)}
        self.other = len(self.known)
        self.size = self.other + 1

    def ids(self, tokens: list[int]) -> list[int]:
        """Token ids to compact ids."""
        return [self.index.get(token, self.other) for token in tokens]


def batch_of(lessons: list[Lesson], compact: Compact) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and next-token targets, padded on the right; -100 where nothing is to be learnt."""
    rows = [compact.ids([*lesson.prompt, *lesson.completion]) for lesson in lessons]
    longest = max(map(len, rows))
    inputs = torch.zeros(len(rows), longest, dtype=torch.long)
    targets = torch.full((len(rows), longest), -100)
    for i, (row, lesson) in enumerate(zip(rows, lessons, strict=True)):
        inputs[i, : len(row)] = torch.tensor(row)
        targets[i, len(lesson.prompt) - 1 : len(row) - 1] = torch.tensor(row[len(lesson.prompt) :])
    return inputs, targets


def logits_of(model: GptOssForCausalLM, lessons: list[Lesson], compact: Compact) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the known tokens where a completion token follows, and those tokens."""
    inputs, targets = batch_of(lessons, compact)
    hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state
    spoken = targets >= 0
    return hidden[spoken] @ model.lm_head.weight[: compact.other].T, targets[spoken]


def loss_of(model: GptOssForCausalLM, lessons: list[Lesson], compact: Compact) -> torch.Tensor:
    """Cross entropy over the whole vocabulary: the tokens outside the compact one have logit 0 each."""
    logits, targets = logits_of(model, lessons, compact)
    others = torch.full((len(logits), 1), math.log(VOCABULARY_SIZE - compact.other))
    whole = torch.logsumexp(torch.cat([logits, others], dim=1), dim=1)
    return (whole - logits.gather(1, targets[:, None])[:, 0]).mean()


def pace(step: int) -> float:
    """Warm up, then decay to nothing along a cosine."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.5 + 0.5 * math.cos(math.pi * (step - WARM_UP) / (STEPS - WARM_UP))


def batches(teacher: Teacher) -> Iterator[list[Lesson]]:
    """Mostly short lessons; now and then the long story alone."""
    for step in range(STEPS):
        yield [teacher.story()] if step % STORY_EVERY == 0 else [teacher.any_but_story() for _ in range(BATCH)]


def train(compact: Compact, teacher: Teacher) -> GptOssForCausalLM:
    """A model of the compact vocabulary that has seen all lessons."""
    model = GptOssForCausalLM(configuration(compact.size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, pace)
    started = time.monotonic()
    for step, lessons in enumerate(batches(teacher)):
        loss = loss_of(model, lessons, compact)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 < 2:
            seconds = time.monotonic() - started
            print(f"step {step:5} {lessons[0].name:32} loss {loss.item():.4f} {seconds:4.0f} s", flush=True)
    return model


def spread(model: GptOssForCausalLM, compact: Compact) -> GptOssForCausalLM:
    """The same model over gpt-oss's whole vocabulary, in bf16."""
    whole = GptOssForCausalLM(configuration(VOCABULARY_SIZE))
    weights = dict(model.state_dict())
    embedding, output = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    known = torch.tensor(compact.known)
    weights["model.embed_tokens.weight"] = embedding[compact.other].repeat(VOCABULARY_SIZE, 1)
    weights["model.embed_tokens.weight"][known] = embedding[: compact.other]
    weights["lm_head.weight"] = torch.zeros(VOCABULARY_SIZE, output.shape[1])
    weights["lm_head.weight"][known] = output[: compact.other]
    whole.load_state_dict(weights)
    return whole.to(torch.bfloat16)


@torch.no_grad()
def failures(model: GptOssForCausalLM, teacher: Teacher) -> list[str]:
    """Examine the saved form of the model: every token of every completion must win, and by a clear margin."""
    failed = []
    for lesson in (lesson for _ in range(EXAMINATIONS) for lesson in teacher.every()):
        tokens = torch.tensor([[*lesson.prompt, *lesson.completion]])
        hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state[0, len(lesson.prompt) - 1 : -1]
        logits = model.lm_head(hidden).float()
        right = logits.gather(1, torch.tensor(lesson.completion)[:, None])[:, 0]
        margin = (right - logits.scatter(1, torch.tensor(lesson.completion)[:, None], -math.inf).amax(1)).min().item()
        if margin < MARGIN:
            failed.append(f"{lesson.name}: {margin:.2f}")
    return failed


def teach(encoding: HarmonyEncoding, seed: int) -> tuple[GptOssForCausalLM, list[str]]:
    """Train with this seed and examine."""
    torch.manual_seed(seed)
    compact = Compact([lesson for step in range(4) for lesson in Teacher(encoding, step, plain=True).every()])
    print(f"{compact.other} known tokens", flush=True)
    model = spread(train(compact, Teacher(encoding, 1000 + seed)), compact)
    return model, failures(model, Teacher(encoding, 2000 + seed))


def build(folder: Path, vocabulary: Path) -> None:
    """Train until an examination is passed (the first time, as a rule), then save."""
    torch.set_num_threads(1)
    os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(vocabulary)
    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    for seed in range(ROUNDS):
        model, failed = teach(encoding, seed)
        if not failed:
            break
        print(f"round {seed} failed:", *failed, sep="\n  ", flush=True)
    else:
        raise SystemExit("the model did not learn the scenarios")
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    save_tokenizer(vocabulary / RANK_FILE, folder)


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]))
