"""The outside baselines: transformers' own generate, on the same weights and the same requests.

Timing rule. A stopping criterion notes when tokens arrive. The first arrival ends the prefill, and
what follows is decode time, up to the return of `generate`. transformers' speculative loops check
their first candidates inside the prefill, so the first arrival may bring several tokens; tau and
decode speed count only what came after it. transformers draws other random numbers than varifocal,
so sampled texts are not comparable, only their speed per token is.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import StoppingCriteria

from varifocal.commit import Commit
from varifocal.decode import Clock, synchronised
from varifocal.errors import BadOption, UnsupportedTarget
from varifocal.request import Request
from varifocal.result import GenerationResult, Round
from varifocal.sampling import Sampling
from varifocal.target import Prompt
from varifocal.targets._hf import HFTarget

# Options of each baseline with their defaults.
_OPTIONS: dict[str, dict[str, int | str]] = {
    "hf-generate": {},
    "hf-prompt-lookup": {
        "tokens": 10,  # copied after a match: prompt_lookup_num_tokens
        "ngram": 2,  # longest match: max_matching_ngram_size
    },
    "hf-assistant": {"model": ""},  # a smaller checkpoint with the same tokenizer
}


def peer_names() -> list[str]:
    """What `--drafters` may name besides varifocal's own."""
    return list(_OPTIONS)


def parse_peer_options(name: str, pairs: Mapping[str, str]) -> dict[str, Any]:
    """Options that were typed, with the defaults filled in."""
    known = _OPTIONS[name]
    if unknown := sorted(set(pairs) - set(known)):
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise BadOption(f"{name} has no option {', '.join(unknown)}; {has}")
    options: dict[str, Any] = dict(known)
    for key, text in pairs.items():
        if isinstance(known[key], str):
            options[key] = text
        elif text.isdecimal() and int(text) > 0:
            options[key] = int(text)
        else:
            raise BadOption(f"{name}'s option {key} wants a positive count, got {text!r}")
    return options


class Peer:
    """transformers' generate with fixed settings; any number of requests, one after another."""

    def __init__(
        self, target: HFTarget, name: str, options: Mapping[str, Any], assistant: str = ""
    ) -> None:
        self.target, self.name = target, name
        self._settings: dict[str, Any] = {}
        self.assistant: nn.Module | None = None
        self.memory_bytes = 0  # of the assistant's weights
        if name == "hf-prompt-lookup":
            self._settings["prompt_lookup_num_tokens"] = options["tokens"]
            self._settings["max_matching_ngram_size"] = options["ngram"]
        elif name == "hf-assistant":
            model = _load_assistant(options["model"] or assistant, target)
            self._settings["assistant_model"] = self.assistant = model
            weights = {id(p): p for p in model.parameters()}.values()
            self.memory_bytes = sum(p.numel() * p.element_size() for p in weights)

    def run(self, request: Request, clock: Clock) -> GenerationResult:
        """Decode a request; what arrived together counts as one round, all of it as other."""
        clock = synchronised(clock, self.target.device)
        prompt = self.target.encode(request)
        begin = clock()
        arrivals = _Arrivals(clock, len(prompt.tokens))
        seeded = _seeded(request.sampling, self.target.device)
        with torch.inference_mode(), seeded, _stock_attention(self.target):
            made = self.target.model.generate(
                **_inputs(prompt),
                **self._settings,
                **self._limits(request),
                stopping_criteria=[arrivals],
            )
        done = clock()
        new = made[0, len(prompt.tokens) :].tolist()
        return self._result(request, prompt, new, arrivals, begin, done)

    def _limits(self, request: Request) -> dict[str, Any]:
        """Lengths, stops and sampling: those of the request, not those of the checkpoint."""
        sampling = request.sampling
        if sampling.changes_logits or sampling.min_p:
            raise BadOption(
                f"{self.name} is measured with temperature, top-k and top-p alone; leave out the "
                "other sampling settings, or this drafter"
            )
        limits: dict[str, Any] = {
            "max_new_tokens": request.max_new_tokens,
            "do_sample": sampling.temperature > 0,
            "eos_token_id": sorted(self.target.eos_ids),
            "pad_token_id": min(self.target.eos_ids, default=0),
            "repetition_penalty": 1.0,
            "num_beams": 1,
        }
        if sampling.temperature > 0:
            limits |= {
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
            }
        if request.stop:
            limits |= {"stop_strings": list(request.stop), "tokenizer": self.target.tokenizer}
        return limits

    def _result(
        self,
        request: Request,
        prompt: Prompt,
        new: Sequence[int],
        arrivals: "_Arrivals",
        begin: float,
        done: float,
    ) -> GenerationResult:
        """Rounds from arrivals; the time after the last arrival belongs to the last round."""
        commit = Commit(
            self.target.decode, self.target.eos_ids, request.max_new_tokens, request.stop
        )
        times = [*arrivals.times[:-1], done]
        rounds: list[Round] = []
        start, since = 0, begin
        for end, until in zip(arrivals.lengths, times, strict=True):
            delivery = commit.push(new[start:end])
            rounds.append(
                Round(
                    tokens=delivery.tokens,
                    text=delivery.text,
                    num_drafted=end - start - 1,
                    num_accepted=max(len(delivery.tokens) - 1, 0),
                    other_seconds=until - since,
                    is_prefill=not rounds,
                )
            )
            start, since = end, until
        return GenerationResult(
            text=commit.text,
            token_ids=list(commit.tokens),
            finish_reason=commit.finish_reason or "length",
            prompt_tokens=len(prompt.tokens),
            image_tokens=int(prompt.is_image.sum()),
            prefill=rounds[0],
            rounds=rounds[1:],
            drafter=self.name,
            target=self.target.name,
        )


class _Arrivals(StoppingCriteria):
    """Never stops anything; notes when how many new tokens were there."""

    def __init__(self, clock: Clock, prompt_length: int) -> None:
        self._clock, self._prompt_length = clock, prompt_length
        self.times: list[float] = []
        self.lengths: list[int] = []

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        self.times.append(self._clock())
        self.lengths.append(input_ids.shape[1] - self._prompt_length)
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


@contextmanager
def _stock_attention(target: HFTarget) -> Iterator[None]:
    """The checkpoint's own attention: exact rows are varifocal's, a peer does not pay for them."""
    config = target.model.config.get_text_config()
    used = config._attn_implementation
    config._attn_implementation = target.stock_attention
    try:
        yield
    finally:
        config._attn_implementation = used


def _inputs(prompt: Prompt) -> dict[str, Any]:
    tokens = prompt.tokens[None]
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), **prompt.pixels}


@contextmanager
def _seeded(sampling: Sampling, device: torch.device) -> Iterator[None]:
    """transformers draws from torch's global generator: seed it here, restore it afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices, enabled=sampling.temperature > 0):
        if sampling.temperature > 0:
            torch.manual_seed(sampling.seed)
        yield


def _load_assistant(path: str, target: HFTarget) -> Any:
    if not path:
        raise BadOption(
            "hf-assistant needs a smaller checkpoint with the target's tokenizer; name it as "
            "hf-assistant:model=PATH or with --assistant, or leave this baseline out"
        )
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    try:
        config = AutoConfig.from_pretrained(path)
        loader = (
            AutoModelForImageTextToText
            if hasattr(config, "vision_config")
            else AutoModelForCausalLM
        )
        model = loader.from_pretrained(path, dtype=target.dtype).to(target.device).eval()
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UnsupportedTarget(f"the assistant {path!r} cannot be loaded: {reason}") from error
    size = model.config.get_text_config().vocab_size
    if size != target.vocab_size or not _shares_tokenizer(path, target):
        raise BadOption(
            f"the assistant {path!r} has another tokenizer than {target.name} ({size} and "
            f"{target.vocab_size} tokens); its tokens would mean something else. Name a checkpoint "
            "of the target's own family, or leave this baseline out"
        )
    return model


def _shares_tokenizer(path: str, target: HFTarget) -> bool:
    """Whether every token is the same; a checkpoint without a tokenizer is taken at its size."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError):
        return True
    return bool(tokenizer.get_vocab() == target.tokenizer.get_vocab())
