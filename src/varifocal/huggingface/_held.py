"""A target around a transformers model that the caller holds, and that stays as it was."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from varifocal.drafter import Drafter
from varifocal.drafters import check_options, drafter_class, load_drafter
from varifocal.errors import BadOption, UnsupportedTarget
from varifocal.plan import CostModel
from varifocal.targets import target_classes
from varifocal.targets._hf import HFTarget
from varifocal.targets._refuse import check_attention

_WAY_OUT = "decode it with model.generate alone"


@dataclass(frozen=True)
class Held:
    """What decodes with a model: weights and settings, nothing of a call."""

    target: HFTarget
    drafter: Drafter[Any]
    cost: CostModel | None

    def fits(self, model: Any) -> bool:
        """Whether this was made for that model, where and as it is now."""
        target = self.target
        return (
            target.model is model and target.device == model.device and target.dtype == model.dtype
        )


def hold(model: Any, tokenizer: Any = None) -> HFTarget:
    """The model as a target. It keeps its attention, configuration, hooks and modes.

    `tokenizer` may be a processor; without one the target knows ids only, and what needs text
    raises BadOption. Raises UnsupportedTarget for models and parts that cannot be exact.
    """
    check_model(model)
    kind = model.config.model_type
    families = target_classes().values()
    family = next((f for f in families if kind in f.model_types), None)
    if family is None:
        known = sorted(t for f in families for t in f.model_types)
        raise UnsupportedTarget(
            f"the model is of type {kind!r}; varifocal knows {', '.join(known)}. Add the family "
            f"(CONTRIBUTING.md shows how, it is one file), or {_WAY_OUT}"
        )
    name = str(getattr(model.config, "_name_or_path", "")) or kind
    return family(model, _processor(model, tokenizer), name)


def check_model(model: Any) -> None:
    """Refuse what is no transformers model, trains just now, or lies on several devices."""
    if not hasattr(model, "config") or not callable(getattr(model, "generate", None)):
        raise BadOption(
            f"the model must be one of transformers, loaded with from_pretrained; got {model!r:.80}"
        )
    if any(module.training for module in model.modules()):
        raise BadOption(
            "the model is in training mode, in which dropout makes every forward another one; "
            "call model.eval() before, and model.train() afterwards"
        )
    places = {str(place) for place in (getattr(model, "hf_device_map", None) or {}).values()}
    if len(places) > 1:
        raise UnsupportedTarget(
            f"the model lies on several devices ({', '.join(sorted(places))}); load it on one with "
            f'device_map="cuda:0" or "cpu", or {_WAY_OUT}'
        )
    text_config = model.config.get_text_config()
    check_attention(getattr(text_config, "_attn_implementation", None), model.config.model_type)


def check_drafter(drafter: Any, options: Mapping[str, Any]) -> None:
    """Refuse a name that no drafter has, and options that it has not, before there is a model.

    What a folder or hub id holds is seen when it is read for a model.
    """
    if isinstance(drafter, Drafter):
        return
    if not isinstance(drafter, str):
        raise BadOption(
            f"drafter must be a name such as 'lookup', a folder, a hub id or a Drafter made for "
            f"the model, got {drafter!r:.80}"
        )
    if not _is_place(drafter):
        check_options(drafter, drafter_class(drafter), dict(options))


def _is_place(drafter: str) -> bool:
    """Whether it is a folder or, as far as the form tells, a hub id."""
    return "/" in drafter or Path(drafter).is_dir()


def load_for(
    drafter: str, target: HFTarget, options: Mapping[str, Any] | None = None
) -> Drafter[Any]:
    """A drafter by name, by dotted module, or from a folder or hub id ("owner/name")."""
    if "/" in drafter and not Path(drafter).is_dir():
        return Drafter.from_pretrained(drafter, target, **dict(options or {}))
    return load_drafter(drafter, target, **dict(options or {}))


def _processor(model: Any, given: Any) -> Any:
    """What the target takes for its processor."""
    if isinstance(given, str):
        raise BadOption(
            f"tokenizer must be a tokenizer or processor object, got {given!r}; make it with "
            "AutoProcessor.from_pretrained"
        )
    reads_pictures = hasattr(model.config, "vision_config")
    if not reads_pictures:
        return getattr(given, "tokenizer", given) or _Ids(model.config)
    if hasattr(given, "image_processor"):
        return given
    size = getattr(model.config.vision_config, "image_size", None)
    # Pictures come as pixels or features: of their processor nothing is asked but this size.
    pictures = SimpleNamespace(do_center_crop=False, size={"height": size, "width": size})
    return SimpleNamespace(
        image_processor=pictures, tokenizer=given or _Ids(model.config), chat_template=None
    )


class _Ids:
    """In the place of a tokenizer that was not given: it knows ids, and no text."""

    knows_ids_only = True
    eos_token_id = unk_token_id = None
    added_tokens_decoder: Mapping[int, Any] = {}

    def __init__(self, config: Any) -> None:
        ids = {
            value
            for part in (config, config.get_text_config())
            for key, value in part.to_dict().items()
            if key.endswith(("_token_id", "_token_index")) and isinstance(value, int) and value >= 0
        }
        self.all_special_ids = sorted(ids)
        self._image_id = getattr(config, "image_token_id", None)

    def convert_tokens_to_ids(self, token: str) -> int | None:
        """Asked for the placeholder of a picture alone."""
        return self._image_id

    def decode(self, tokens: Any, **_: Any) -> str:
        """Results without a tokenizer have no text."""
        return ""

    def get_vocab(self) -> dict[str, int]:
        """Asked for by what must know to which vocabulary a drafter belongs."""
        raise BadOption(
            "a trained drafter, and a measured cost, belong to a model and its tokenizer; give "
            "tokenizer= (the model's tokenizer or processor) to Speculative or varifocal.generate"
        )

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise BadOption(
            "text needs the model's tokenizer; give tokenizer= to Speculative or varifocal.generate"
        )
