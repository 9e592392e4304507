"""Drop-in for transformers users: `generate`, and `Speculative` for `model.generate`."""

import threading
from collections.abc import Callable, Mapping
from copy import copy, deepcopy
from typing import Any, overload

import torch

from varifocal.decode import generate as decode_request
from varifocal.drafter import Drafter
from varifocal.engine import measure
from varifocal.errors import BadOption, DrafterMismatch
from varifocal.huggingface._held import Held, check_drafter, check_model, hold, load_for
from varifocal.huggingface._output import Answer, assembled
from varifocal.huggingface._rows import Row, rows_of
from varifocal.huggingface._run import Run
from varifocal.huggingface._settings import Settings, check_call
from varifocal.request import Request
from varifocal.result import GenerationResult
from varifocal.sampling import Sampling
from varifocal.target import Target

__all__ = ["Speculative", "generate"]

_NOT_HONOURED = {
    "assistant_model": "the drafter takes its place; give drafter=",
    "assistant_tokenizer": "the drafter takes its place; give drafter=",
    "custom_generate": "it is what varifocal sets; call model.generate for another one",
    "cache": "varifocal fills a cache of its own; give the whole conversation as input_ids",
    "past_key_values": "varifocal fills a cache of its own; give the whole conversation as "
    "input_ids",
    "inputs_embeds": "drafters read ids; give input_ids, and pictures as the processor makes them",
}


class Speculative:
    """For `model.generate(**inputs, custom_generate=Speculative(drafter))`.

    `drafter` is a name such as "lookup", a folder or hub id of a trained drafter, or a `Drafter`
    made for this model. A folder is read at the first call and kept with the model it was read for.

    `tokenizer` (or a processor that holds one) is needed by trained drafters, to see that they
    belong to the model, and for `text` in results. `streamer` gets the prompt, then every token, as
    from `model.generate`, which itself keeps its own `streamer=` from a `custom_generate`. `seed`
    decides what is sampled; None draws one from torch's global generator. Row i of several has the
    seed `seed + i`. `calibrate` measures what a round costs on this machine (seconds at the first
    call, then kept in the user's cache folder), so that the drafts have the size that pays.
    `on_result` is called with the `GenerationResult` of every row.

    Nothing of a call lives here: one object serves any number of calls and threads.
    """

    def __init__(
        self,
        drafter: str | Drafter[Any] = "lookup",
        *,
        tokenizer: Any = None,
        streamer: Any = None,
        seed: int | None = None,
        calibrate: bool = False,
        drafter_options: Mapping[str, Any] | None = None,
        on_result: Callable[[GenerationResult], object] | None = None,
    ) -> None:
        if isinstance(drafter, Drafter) and drafter_options:
            raise BadOption(
                "drafter_options are for a drafter given by name or folder; this one is made "
                f"already ({drafter.name}), so give them where it is made"
            )
        check_drafter(drafter, drafter_options or {})
        if seed is not None:
            Sampling(seed=seed)  # raises for what is no seed, as everywhere
        self._drafter, self._tokenizer, self._streamer = drafter, tokenizer, streamer
        self._seed, self._calibrate, self._on_result = seed, calibrate, on_result
        self._options = dict(drafter_options or {})
        self._lock = threading.Lock()
        self._held: Held | None = None  # of the newest model; weights and settings only

    def __call__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """What transformers calls once ids, features, processors and criteria are prepared.

        Returns ids (rows, tokens), prompts included and shorter rows padded, or with
        `return_dict_in_generate` a `GenerateDecoderOnlyOutput`, which also has `varifocal`.
        Raises BadOption for every option that is not honoured, UnsupportedTarget for such models.
        """
        if generation_config is None:
            raise BadOption(
                "Speculative is called by transformers; write "
                "model.generate(**inputs, custom_generate=Speculative(...))"
            )
        check_model(model)
        check_call(generation_config, logits_processor, stopping_criteria, model_kwargs)
        held = self._for(model)
        rows = rows_of(model, input_ids, model_kwargs)
        if self._streamer is not None and len(rows) > 1:
            raise BadOption(f"a streamer takes one sequence, got {len(rows)}; leave it out")
        seed = int(torch.randint(2**63 - 1, ())) if self._seed is None else self._seed
        answers = []
        for number, row in enumerate(rows):
            settings = Settings.of(
                generation_config, logits_processor, stopping_criteria, row, (seed + number) % 2**63
            )
            answers.append(self._answer(held, row, settings))
        return assembled(answers, input_ids, generation_config)

    def _answer(self, held: Held, row: Row, settings: Settings) -> Answer:
        target = copy(held.target)  # end tokens are of the call, weights are shared
        target.eos_ids = settings.eos_ids
        run = Run(target, held.drafter, row, settings, held.cost)
        streamer = self._streamer
        if streamer is not None:
            streamer.put(row.padded.cpu())
        try:
            for decided in run:
                if streamer is not None:
                    for token in decided.tokens:  # one by one, as from plain decoding
                        streamer.put(torch.tensor([token]))
        finally:
            if streamer is not None:
                streamer.end()  # also where decoding failed: a reader may be waiting
        answer = run.answer()
        if self._on_result is not None:
            self._on_result(answer.result)
        return answer

    def _for(self, model: Any) -> Held:
        """Target, drafter and cost for this model: made once, and again if it was moved."""
        if isinstance(self._drafter, Drafter):
            return self._given(model, self._drafter)
        with self._lock:
            if self._held is None or not self._held.fits(model):
                target = hold(model, self._tokenizer)
                drafter = load_for(self._drafter, target, self._options)
                cost = measure(target, drafter) if self._calibrate else None
                self._held = Held(target, drafter, cost)
            return self._held

    def _given(self, model: Any, drafter: Drafter[Any]) -> Held:
        owner: Any = getattr(drafter.target, "model", None)
        if owner is not model:
            raise DrafterMismatch(
                f"the drafter {drafter.name} was made for {drafter.target.name!r}, not for the "
                "model that generates; make it with Drafter.from_pretrained(folder, model, "
                "tokenizer=...)"
            )
        target: Any = drafter.target
        made = Held(target, drafter, None)
        if not made.fits(model):
            raise DrafterMismatch(
                f"the drafter {drafter.name} was made when the model was on {target.device} in "
                f"{target.dtype}; now it is on {model.device} in {model.dtype}. Make the drafter "
                "again"
            )
        if self._tokenizer is not None:
            target = copy(target)
            target.tokenizer = hold(model, self._tokenizer).tokenizer
        with self._lock:
            cost = measure(target, drafter) if self._calibrate else None
        return Held(target, drafter, cost)


@overload
def generate(
    model: Target, drafter: Drafter[Any], request: Request, **options: Any
) -> GenerationResult: ...


@overload
def generate(
    model: Any,
    inputs: torch.Tensor | None = None,
    *,
    drafter: str | Drafter[Any] = "lookup",
    tokenizer: Any = None,
    streamer: Any = None,
    seed: int | None = None,
    calibrate: bool = False,
    drafter_options: Mapping[str, Any] | None = None,
    on_result: Callable[[GenerationResult], object] | None = None,
    **options: Any,
) -> Any: ...


def generate(model: Any, *args: Any, **options: Any) -> Any:
    """`model.generate(**inputs, ...)` by speculative decoding, for a model of transformers.

    `options` are what a processor returns (`input_ids`, `attention_mask`, `pixel_values`, ...) and
    the options of `model.generate`; the rest is as in `Speculative`. Returns what `model.generate`
    returns. `stop_strings` need `tokenizer=`.

    With a `Target` of this package, a drafter and a `Request`, it decodes that request instead.
    """
    if isinstance(model, Target):
        return decode_request(model, *args, **options)
    return _generate(model, *args, **options)


def _generate(
    model: Any,
    inputs: torch.Tensor | None = None,
    *,
    drafter: str | Drafter[Any] = "lookup",
    tokenizer: Any = None,
    streamer: Any = None,
    seed: int | None = None,
    calibrate: bool = False,
    drafter_options: Mapping[str, Any] | None = None,
    on_result: Callable[[GenerationResult], object] | None = None,
    **options: Any,
) -> Any:
    check_model(model)
    for name, way_out in _NOT_HONOURED.items():
        if options.get(name) is not None:
            raise BadOption(f"{name} is not honoured: {way_out}")
    ids = options.get("input_ids") if inputs is None else inputs
    if not isinstance(ids, torch.Tensor) or ids.dim() != 2:
        came = f"a tensor of shape {tuple(ids.shape)}" if isinstance(ids, torch.Tensor) else ids
        raise BadOption(
            "input_ids must be a tensor of shape (rows, tokens), as a processor makes with "
            f'return_tensors="pt" and, for several rows, padding=True; got {came!r:.80}'
        )
    speculative = Speculative(
        drafter,
        tokenizer=tokenizer,
        streamer=streamer,
        seed=seed,
        calibrate=calibrate,
        drafter_options=drafter_options,
        on_result=on_result,
    )
    options = _with_stop_strings(model, tokenizer, options)
    return model.generate(inputs, custom_generate=speculative, **options)


def _with_stop_strings(model: Any, tokenizer: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options with stop strings as a criterion: transformers would miss its tokenizer."""
    configured = options.get("generation_config")
    given = [
        options.get("stop_strings"),
        getattr(configured, "stop_strings", None),
        getattr(model.generation_config, "stop_strings", None),
    ]
    strings = next((strings for strings in given if strings is not None), None)
    if strings is None:
        return options
    if tokenizer is None:
        raise BadOption(
            f"stop_strings {strings!r} are text, and only the model's tokenizer knows in which "
            "tokens they may end; give tokenizer=, or stop at ids with eos_token_id="
        )
    # Imported here: they take seconds.
    from transformers import StoppingCriteriaList, StopStringCriteria

    plain = getattr(tokenizer, "tokenizer", tokenizer)
    criteria = StoppingCriteriaList(options.get("stopping_criteria") or [])
    criteria.append(StopStringCriteria(tokenizer=plain, stop_strings=strings))
    changed = {**options, "stopping_criteria": criteria}
    if configured is not None:
        changed["generation_config"] = deepcopy(configured)
        changed["generation_config"].stop_strings = None
    if given[0] is not None or given[2] is not None:
        changed["stop_strings"] = None
    return changed
