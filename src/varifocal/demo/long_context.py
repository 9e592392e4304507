"""Train the tiny language model for long contexts that `varifocal sparse` runs on by default.

An ordinary small Llama with grouped heads, one token a word, trained on the answers of `recall`;
texts get longer as training goes on. A second leg (`--legs 2`) goes on to still longer ones.
Resumes where it was cut off.
"""

import argparse
import json
import logging
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from jaxtyping import Float, Int64
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from varifocal.demo.journal import Every, append_line, save_atomically
from varifocal.demo.optimise import Optimisers
from varifocal.demo.recall import END, KINDS, MARKS, WORDS, LongText, Split, draw_long
from varifocal.errors import BadOption

logger = logging.getLogger(__name__)
PAD = "<pad>"


@dataclass(frozen=True, kw_only=True)
class Leg:
    """A part of the training with its own texts and its own fall of the learning rate."""

    seconds: float  # CPU seconds of the training process
    lengths: tuple[int, ...]  # words of a text, each for a share of the leg
    shares: tuple[float, ...]
    reviews: tuple[int, ...] = ()  # of every fourth step, in turn; none: the length before
    height: float = 1.0  # of the plan's rate
    rise: float = 0.0  # share of the leg until that is reached
    hold: float = 0.6  # share of the leg before it falls

    def rate(self, done: float, floor: float) -> float:
        """Of the plan's rate, at a share of the leg."""
        fall = max(0.0, (done - self.hold) / (1 - self.hold))
        risen = min(1.0, done / self.rise) if self.rise else 1.0
        return self.height * risen * (1 - (1 - floor) * fall)

    def length(self, done: float, step: int) -> int:
        """Words of the texts of a step."""
        stage = min(
            int(np.searchsorted(np.cumsum(self.shares), done, side="right")), len(self.lengths) - 1
        )
        if step % 4:
            return self.lengths[stage]
        if self.reviews:
            return self.reviews[step // 4 % len(self.reviews)]
        return self.lengths[max(0, stage - 1)]


LEGS = (
    Leg(seconds=1520.0, lengths=(96, 192, 384, 768, 1536), shares=(0.25, 0.2, 0.2, 0.2, 0.15)),
    Leg(
        seconds=1200.0,
        lengths=(1536, 2304, 3072, 4096),
        shares=(0.08, 0.17, 0.25, 0.5),
        reviews=(2048, 768, 3072, 384),
        height=0.5,
        rise=0.02,
        hold=0.5,
    ),
)


@dataclass(frozen=True, kw_only=True)
class LongPlan:
    """What is spent, on what."""

    legs: int = 1  # of `LEGS`; the shipped weights come from one
    pace: float = 1.0  # of the legs' seconds; less for a trial
    rate: float = 4e-3
    floor: float = 0.05  # of the rate, at the end of a leg
    tokens: int = 8192  # of a batch
    hidden: int = 128
    inner: int = 352
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    threads: int = 1
    test_items: int = 24  # texts a kind and length to score on
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.legs <= len(LEGS):
            raise BadOption(f"legs must be within 1 and {len(LEGS)}, got {self.legs}")

    @property
    def seconds(self) -> float:
        """CPU seconds of all legs."""
        return self.pace * sum(leg.seconds for leg in LEGS[: self.legs])

    def leg(self, spent: float) -> tuple[Leg, float]:
        """The leg that these seconds have come to, and the share of it that is done."""
        begun = 0.0
        for leg in LEGS[: self.legs]:
            seconds = self.pace * leg.seconds
            if spent < begun + seconds:
                return leg, (spent - begun) / seconds
            begun += seconds
        return LEGS[self.legs - 1], 1.0


def new_tokenizer() -> PreTrainedTokenizerFast:
    """A token for every word and mark; other words are refused by whoever encodes them."""
    vocabulary = {word: number for number, word in enumerate((PAD, *MARKS, *WORDS))}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token=PAD, eos_token=END, unk_token=PAD
    )


def new_model(plan: LongPlan, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """With random weights drawn from the plan's seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=plan.hidden,
                intermediate_size=plan.inner,
                num_hidden_layers=plan.layers,
                num_attention_heads=plan.heads,
                num_key_value_heads=plan.kv_heads,
                max_position_embeddings=8192,
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )


def batch(
    tokenizer: PreTrainedTokenizerFast, texts: Sequence[LongText]
) -> tuple[Int64[Tensor, "B T"], Int64[Tensor, "B T"]]:
    """Ids, and the same where an answer is to be said, else -100."""
    vocabulary = tokenizer.get_vocab()
    rows, wanted = [], []
    for text in texts:
        words, is_said = text.written()
        rows.append(torch.tensor([vocabulary[word] for word in words]))
        wanted.append(torch.where(torch.tensor(is_said), rows[-1], -100))
    pad = tokenizer.pad_token_id
    return (
        torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad),
        torch.nn.utils.rnn.pad_sequence(wanted, batch_first=True, padding_value=-100),
    )


def train_long(run: Path, plan: LongPlan) -> tuple[LlamaForCausalLM, dict[str, Any]]:
    """Train in `run`; returns the model and what was spent."""
    torch.set_num_threads(plan.threads)
    tokenizer = new_tokenizer()
    model = new_model(plan, tokenizer).train()
    optimisers = Optimisers(model, plan.rate)
    saved, log = run / "long.pt", run / "long.jsonl"
    step, spent = 0, 0.0
    if saved.exists():
        state = torch.load(saved, weights_only=False)
        model.load_state_dict(state["model"])
        optimisers.load(state["optimisers"])
        step, spent = state["step"], state["spent"]
    begun, save_due, losses = time.process_time() - spent, Every(120.0), list[float]()
    while spent < plan.seconds:
        leg, done = plan.leg(spent)
        optimisers.set_rate(min(1.0, (step + 1) / 50) * leg.rate(done, plan.floor))
        texts = _lesson(plan, leg.length(done, step), step)
        losses.append(_learn(model, optimisers, *batch(tokenizer, texts)))
        step, spent = step + 1, time.process_time() - begun
        if step % 50 == 0:
            record = {"step": step, "spent": round(spent, 1), "loss": float(np.mean(losses))}
            if step % 250 == 0:
                record |= score(model, tokenizer, (192, 768, 3072)[: plan.legs + 1], 4, "valid")
            append_line(log, record)
            losses.clear()
        if save_due.is_due() or spent >= plan.seconds:
            state = {"model": model.state_dict(), "optimisers": optimisers.state()}
            save_atomically(state | {"step": step, "spent": spent}, saved)
    return model.eval(), {"steps": step, "cpu_seconds": round(spent, 1)}


def _lesson(plan: LongPlan, length: int, step: int) -> list[LongText]:
    """Texts of single kinds, every third of all kinds; few texts take turns over the steps."""
    count = max(1, plan.tokens // length)
    first = step * count if count <= len(KINDS) else 0
    turns = range(first, first + count)
    kinds = [KINDS if turn % 3 == 0 else (KINDS[turn % 4],) for turn in turns]
    return [draw_long(kind, length, step * 1000 + n) for n, kind in enumerate(kinds)]


def _learn(
    model: LlamaForCausalLM,
    optimisers: Optimisers,
    ids: Int64[Tensor, "B T"],
    wanted: Int64[Tensor, "B T"],
) -> float:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, said = _answers(model, ids, wanted)
        loss = F.cross_entropy(logits.float(), said)
    loss.backward()
    optimisers.step()
    return float(loss.detach())


def _answers(
    model: LlamaForCausalLM, ids: Int64[Tensor, "B T"], wanted: Int64[Tensor, "B T"]
) -> tuple[Float[Tensor, "n V"], Int64[Tensor, " n"]]:
    """Logits where a word of an answer comes next, and these words."""
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    is_said = wanted[:, 1:] >= 0
    return model.lm_head(hidden[is_said]), wanted[:, 1:][is_said]


@torch.no_grad()
def score(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    lengths: Sequence[int],
    items: int,
    split: Split,
) -> dict[str, float]:
    """Share of answer words that come first in the logits, by kind and length of text."""
    found = {}
    for length in lengths:
        for kind in KINDS:
            right = total = 0
            for index in range(items):
                texts = [draw_long((kind,), length, index, split)]
                logits, said = _answers(model, *batch(tokenizer, texts))
                right += int((logits.argmax(-1) == said).sum())
                total += len(said)
            found[f"{kind} {length}"] = round(right / total, 4)
    return found


def build_long(run: Path, out: Path, plan: LongPlan) -> dict[str, Any]:
    """Train, export to `out` as `from_pretrained` wants it, score; returns the recipe."""
    model, spent = train_long(run, plan)
    tokenizer = new_tokenizer()
    recipe = {
        "command": f"python -m varifocal.demo.long_context --run RUN --out OUT --legs {plan.legs}",
        "seed": plan.seed,
        "plan": asdict(plan) | {"legs": [asdict(leg) for leg in LEGS[: plan.legs]]},
        **spent,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "machine": platform.machine(),
        "scores": score(model, tokenizer, (512, 1024, 2048, 4096), plan.test_items, "test"),
    }
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=False
    )
    model.to(torch.float16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    for file in out.iterdir():
        file.chmod(0o644)  # safetensors makes its file private, which a package must not be
    (out / "RECIPE.json").write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")
    return recipe


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m varifocal.demo.long_context`: the settings as flags."""
    default = LongPlan()
    parser = argparse.ArgumentParser(description="Train the tiny model for long contexts.")
    parser.add_argument("--run", type=Path, required=True, help="folder of checkpoints and logs")
    parser.add_argument("--out", type=Path, required=True, help="folder of the finished model")
    for name, value in asdict(default).items():
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=type(value), default=value)
    given = vars(parser.parse_args(arguments))
    run, out = given.pop("run"), given.pop("out")
    run.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logger.info("%s", build_long(run, out, replace(default, **given))["scores"])


if __name__ == "__main__":
    main(sys.argv[1:])
