"""An ordinary small model as the drafter, seen through several views of the prompt. [TABED]

Its views (with pictures, without, pooled, captioned; `_views`) read the same text in one forward,
their laws are mixed, and what they weigh follows from what the target made of the text before
(`_arbitration`). Symbols: their q^(v) is a row of `laws`, w^* is `Arbitration.choose`, gamma is
`depth`, h is `window`, d is `width`. Left out: drawing drafts from the mixture; here they are its
likeliest tokens, and `verify.follow` is exact for any draft.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise, takewhile
from typing import Any, ClassVar, Self, cast

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from varifocal.drafter import Drafter
from varifocal.drafters._arbitration import Arbitration, Labels, Policy, Rule
from varifocal.drafters._caption import Captioner, ChatCaptioner, load_captioner
from varifocal.drafters._growth import Frontier, Scored, grow
from varifocal.drafters._same_ids import check_same_ids
from varifocal.drafters._views import NAMES, Reading, open_views, too_long
from varifocal.drafters._weights import shipped_draft_model
from varifocal.errors import BadOption
from varifocal.fast import fast_target
from varifocal.plan import Budget
from varifocal.target import Forward, Prompt, Target
from varifocal.targets import load_target
from varifocal.targets._hf import HFTarget
from varifocal.targets._single import single_row_name
from varifocal.tree import DraftTree
from varifocal.verify import Verification

_AWAITED = 64  # positions decoded plainly whose laws are kept until the views have read them


@dataclass
class _Level:
    """Nodes that the views have read in the round under way, and what they said there."""

    tokens: Int64[Tensor, " k"]
    row: Int64[Tensor, " k"]  # each node's parent, as a row of the level before
    laws: Float[Tensor, "k m V"]


@dataclass
class _Position:
    """A decided token, and what both models said before it."""

    token: int
    target: Float[Tensor, " W"]  # logits
    laws: Float[Tensor, "m V"] | None = None  # None: the views have not read what is before it


@dataclass
class EnsembleState:
    """One request."""

    views: Reading
    arbitration: Arbitration
    root: int  # the newest token, which is read when it is drafted from
    unread: list[int] = field(default_factory=list)  # decided tokens before it, likewise
    levels: list[_Level] = field(default_factory=list)  # of the round under way, the root's first
    # Decided positions that no weight knows of yet: first those whose laws are there, then one for
    # each of the last tokens of `unread`.
    judged: list[_Position] = field(default_factory=list)
    awaited: deque[_Position] = field(default_factory=lambda: deque(maxlen=_AWAITED))
    decided: int = 1  # tokens of the text, the root's included
    begins: list[int] = field(default_factory=list)  # how many before each block of `weights`

    @property
    def weights(self) -> list[dict[str, float]]:
        """What each view weighed, block by block. [TABED, Fig. 3]"""
        return self.arbitration.blocks

    @property
    def left_out(self) -> dict[str, str]:
        """Views that were asked for and are not used, with the reason."""
        return self.views.left_out


class EnsembleDrafter(Drafter[EnsembleState]):
    """Mixes what the views of a small model hold likely; needs no training."""

    name: ClassVar[str] = "ensemble"
    pictures: ClassVar[str] = "as the draft model does: in full, pooled, captioned, not at all"
    needs: ClassVar[str] = (
        "a draft model with the target's tokenizer (model=FOLDER or hub id); "
        "one is shipped for the embedded target"
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(Drafter.Config):
        """The draft model, its views, and how they are weighed."""

        depth: int = 5  # gamma
        model: str = ""  # folder or hub id of the draft model; "" takes the one shipped
        views: str = "MT"  # some of M (multimodal), T (text only), P (pooled), C (captioned)
        width: int = 1  # children per node and nodes read per level; 1 drafts a chain
        policy: Policy = "mt"  # see _arbitration.Rule for these
        labels: Labels = "tvd"  # soft ones: few positions of hard ones often favour the wrong view
        window: int = 0
        steps: int = 10
        temperature: float = 1.0
        weights: tuple[float, ...] = ()  # of policy=static, in the order of `views`
        seed: int = 0
        captioner: str = "draft"  # for view C: the draft model itself, or a folder or hub id
        caption_prompt: str = "Describe the picture in one short sentence."  # for chat models
        caption_tokens: int = 32  # at most, of each picture

        def __post_init__(self) -> None:
            super().__post_init__()
            views = self.views
            if not views or len(set(views)) < len(views) or not set(views) <= set(NAMES):
                raise BadOption(f"views must be some of {', '.join(NAMES)}, each once, got {views}")
            for name in ("width", "caption_tokens"):
                if getattr(self, name) < 1:
                    raise BadOption(f"{name} must be at least 1, got {getattr(self, name)}")
            # It checks its own settings, and that there is a weight for each view.
            Arbitration(self.rule, self.views)

        @property
        def rule(self) -> Rule:
            """How weights are chosen."""
            return Rule(
                policy=self.policy,
                labels=self.labels,
                window=self.window,
                steps=self.steps,
                temperature=self.temperature,
                fixed=tuple(self.weights),
                seed=self.seed,
            )

    config: Config

    def __init__(
        self,
        target: Target,
        config: Config,
        *,
        model: HFTarget | None = None,
        captioner: Captioner | None = None,
    ) -> None:
        """`model` and `captioner` are taken instead of loading those of `config`.

        With neither a model nor the name of one the target drafts for itself: right, never fast.
        Raises DrafterMismatch for a model with another tokenizer.
        """
        if model is None and not config.model:
            model = cast(HFTarget, target)
        if model is None:
            model = load_target(
                config.model, dtype=target.dtype, device=target.device, exact_rows=False
            )
        elif not config.model:  # measured costs are kept by the settings
            config = replace(config, model=f"{model.name} {model.fingerprint}")
        super().__init__(target, config)
        self._is_other = model is not target
        if self._is_other:
            check_same_ids(target, model)
        self.model, self._captioner = model, captioner
        if captioner is None and "C" in config.views:
            self._captioner = self._loaded_captioner()
        self._num_ids = min(model.vocab_size, target.vocab_size)
        self._banned = torch.zeros(self._num_ids, device=target.device)
        banned = sorted(i for i in target.banned_ids if i < self._num_ids)
        self._banned[banned] = float("-inf")

    @classmethod
    def load(cls, target: Target, options: Mapping[str, Any]) -> Self:
        """With the draft model that `options` name, or the one that is shipped for the target."""
        config = cls.Config(**options)
        if not config.model:
            shipped = shipped_draft_model(target)
            if shipped is None:
                raise BadOption(
                    f"{cls.name} drafts with a small model that shares the target's tokenizer; "
                    "name it with model=FOLDER or a hub id"
                )
            config = replace(config, model=str(shipped))
        return cls(target, config)

    def prepare(self) -> None:
        """On a CPU the layout in which oneDNN multiplies; the given model stays as it is."""
        given = self.model
        if given.device.type != "cpu":
            return
        self.model = fast_target(given)
        text_config = self.model.model.config.get_text_config()
        is_stock = text_config._attn_implementation == "sdpa"
        if self.model is not given and is_stock and given.dtype != torch.float32:
            text_config._attn_implementation = single_row_name()

    @property
    def memory_bytes(self) -> int:
        """Weights of the draft model, its tower included; none where it is the target."""
        if not self._is_other:
            return 0
        return sum(p.numel() * p.element_size() for p in self.model.model.parameters())

    # -- decoding ------------------------------------------------------------------------------

    def start(self, prompt: Prompt, prefill: Forward, root: int) -> EnsembleState:
        """Read the prompt in every view. Captions are made here, once."""
        config, views = self.config, self._opened(prompt)
        asked = ""
        if config.policy == "random":
            asked = f"{prompt.request.sampling.seed} {prompt.tokens.tolist()}"
        arbitration = Arbitration(config.rule, config.views, asked)
        for name in views.left_out:
            arbitration = _without(arbitration, name)
        return EnsembleState(views, arbitration, root)

    def propose(self, state: EnsembleState, root: int, budget: Budget) -> DraftTree:
        """A tree by the probabilities of the mixture; of width 1, a chain."""
        depth = min(budget.depth, budget.nodes)  # no path is longer than the tree has nodes
        self._leave_full(state, depth)
        if not state.views.names or not self._reads(root):
            return DraftTree.chain([root], self.target.device)
        first = self._read(state, root)
        state.begins.append(state.decided)
        weights = torch.tensor(state.arbitration.choose(), device=first.laws.device)

        def mixed(level: _Level) -> Scored:
            state.levels.append(level)
            return (weights @ level.laws).log(), None

        def expand(frontier: Frontier) -> Scored:
            logits = state.views.draft(self.model, frontier.tokens, frontier.sees, frontier.depth)
            return mixed(_Level(frontier.tokens, frontier.row, self._laws(logits)))

        return grow(root, mixed(first), expand, self.config.width, replace(budget, depth=depth))

    def observe(self, state: EnsembleState, verdict: Verification, seen: Forward) -> None:
        """Keep what was read of the text, and the laws before each token of it."""
        root, state.root = state.root, verdict.tokens[-1]
        state.decided += len(verdict.tokens)
        levels, state.levels = state.levels, []
        if not state.views.names:
            return
        rows = _read_rows(levels, verdict)
        if levels:
            sizes = [0, *(len(level.tokens) for level in levels[1:])]
            begins = accumulate(sizes)
            state.views.keep([begin + row for begin, row in zip(begins, rows[1:], strict=False)])
        # Rounds that it was told of late have no logits; what they say no weight can follow from.
        learns = state.arbitration.is_learning and seen.logits.shape[-1] > 0
        before = [root, *verdict.tokens]
        for k, token in enumerate(verdict.tokens):
            position = _Position(token, seen.logits[k])
            is_read = k < len(rows)
            if is_read:
                position.laws = levels[k].laws[rows[k]]
            elif not self._reads(before[k]):
                continue
            else:
                state.unread.append(before[k])
            if learns:
                (state.judged if is_read else state.awaited).append(position)

    @torch.inference_mode()
    def laws_along(
        self, prompt: Prompt, text: Sequence[int]
    ) -> tuple[list[str], Float[Tensor, "P m V"]]:
        """Names of the views, and what each holds likely before every token of an answer but one.

        That is the first, which is the target's. It ends where the draft model lacks a token. All
        is read anew: for looking at what was drafted, not for drafting.
        """
        views = self._opened(prompt)
        known = list(takewhile(self._reads, text[:-1]))
        return views.names, self._laws(views.read(self.model, known))

    # -- joinery -------------------------------------------------------------------------------

    def _opened(self, prompt: Prompt) -> Reading:
        config, captioner = self.config, self._captioner
        if captioner is None and "C" in config.views:
            captioner = ChatCaptioner(self.model, config.caption_prompt, config.caption_tokens)
        return open_views(self.model, prompt, config.views, captioner)

    def _read(self, state: EnsembleState, root: int) -> _Level:
        """The decided text up to the root, and what is learnt on the way."""
        logits = state.views.read(self.model, [*state.unread, root])
        state.unread = []
        count = len(state.awaited)
        laws = self._laws([rows[-1 - count :] for rows in logits])
        for position, own in zip(state.awaited, laws, strict=False):
            position.laws = own
        state.judged += state.awaited
        state.awaited.clear()
        self._learn(state)
        node = torch.tensor([root], device=laws.device)
        return _Level(node, torch.zeros_like(node), laws[-1:])

    def _learn(self, state: EnsembleState) -> None:
        """Hand the positions whose laws are known to the arbitration."""
        known = [(p.laws, p.target, p.token) for p in state.judged if p.laws is not None]
        state.judged = []
        if not known:
            return
        laws, target, tokens = zip(*known, strict=True)
        state.arbitration.learn(
            torch.stack(laws),
            torch.stack(target).float().softmax(-1)[:, : self._num_ids],
            torch.tensor(tokens, device=laws[0].device),
        )

    def _laws(self, logits: Sequence[Float[Tensor, "k W"]]) -> Float[Tensor, "k m V"]:
        """Probabilities of what may be drafted, view by view."""
        ours = torch.stack([rows[:, : self._num_ids] for rows in logits], 1)
        return (ours.float() + self._banned).softmax(-1)

    def _reads(self, token: int) -> bool:
        """Whether the draft model has this token; only special ones of the target are missing."""
        return token < self.model.vocab_size

    def _leave_full(self, state: EnsembleState, depth: int) -> None:
        """Leave out views that the draft model's context does not hold any longer."""
        new = len(state.unread) + 1 + depth
        lengths = zip(tuple(state.views.names), tuple(state.views.caches), strict=True)
        for name, cache in lengths:
            if cache.length + new > self.model.context_length:
                self._learn(state)  # of laws that still have the view
                state.awaited.clear()
                state.views.drop(name, too_long(self.model, cache.length))
                state.arbitration = _without(state.arbitration, name)

    def _loaded_captioner(self) -> Captioner | None:
        """The one that the settings name; None stands for the draft model."""
        config = self.config
        if config.captioner != "draft":
            return load_captioner(
                config.captioner,
                device=self.target.device,
                prompt=config.caption_prompt,
                max_tokens=config.caption_tokens,
            )
        if self.model.image_token is None:
            raise BadOption(
                f"the draft model {self.model.name} reads no pictures, so it has no caption for "
                "the view C; name a captioner with captioner=FOLDER or a hub id, or leave C out "
                "of views"
            )
        return None


def _without(arbitration: Arbitration, name: str) -> Arbitration:
    """The weights of the other views; those of none are not asked for."""
    return arbitration.without(name) if len(arbitration.members) > 1 else arbitration


def _read_rows(levels: Sequence[_Level], verdict: Verification) -> list[int]:
    """The path's nodes that the views have read, as rows of their levels."""
    if not levels:
        return []
    listed = torch.cat([torch.stack([level.tokens, level.row]) for level in levels], 1).tolist()
    begins = accumulate((len(level.tokens) for level in levels), initial=0)
    rows = [0]
    parts = [slice(begin, end) for begin, end in pairwise(begins)]
    for part, token in zip(parts[1:], verdict.tokens[: verdict.num_accepted], strict=False):
        nodes = list(zip(*(column[part] for column in listed), strict=True))
        if (token, rows[-1]) not in nodes:
            break
        rows.append(nodes.index((token, rows[-1])))
    return rows
