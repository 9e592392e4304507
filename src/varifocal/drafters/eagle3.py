"""EAGLE-3: three layers of the target fused, no loss on states, a vocabulary of its own. [EAGLE-3]

Symbols: their fc is `fuse`, a_i the output of the block before `out_norm`, which is what the next
draft step reads; d2t and t2d are kept in their layout: d2t[i] + i is the target's id of the
drafter's token i, t2d[v] says that the drafter has v. Pictures: the drafter embeds ids alone, so a
picture's slot is its placeholder, and what the drafter knows of it is in the fused layers. Left
out: multi-axis positions; slots are counted one by one. `blocks`, `fc_norm` and the settings whose
names begin with `norm_` are those of published weights that differ from the paper's network.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from varifocal.drafters._blocks import Block, BlockShape, PairBlock
from varifocal.drafters._growth import Scored
from varifocal.drafters._learned import LearnedDrafter
from varifocal.drafters._recurrence import Recurrence, begin, draft, note, read
from varifocal.drafters._tapped import find_layers, layers_of, recorded, side_by_side
from varifocal.drafters._unroll import Chain, Judged, Teacher, collate, gather, nothing, unroll
from varifocal.errors import BadArtifact, BadOption
from varifocal.plan import Budget
from varifocal.target import Forward, Prompt, Target, Want
from varifocal.training.artifacts import Artifact, Subset
from varifocal.training.losses import Losses
from varifocal.tree import DraftTree
from varifocal.verify import Verification


class TapNorms(nn.Module):
    """A norm for each of the tapped layers, which lie side by side."""

    def __init__(self, shape: BlockShape, num_taps: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(shape.norm() for _ in range(num_taps))

    def forward(self, feature: Float[Tensor, "*b F"]) -> Float[Tensor, "*b F"]:
        """Each layer by its own."""
        parts = feature.chunk(len(self.norms), -1)
        return torch.cat([norm(part) for norm, part in zip(self.norms, parts, strict=True)], -1)


class Eagle3Network(nn.Module):
    """Everything that is trained, and the map of its vocabulary; embeddings are the target's."""

    d2t: Int64[Tensor, " v"]
    t2d: Bool[Tensor, " V"]

    def __init__(self, target: Target, settings: "Eagle3Drafter.Config", ids: Tensor) -> None:
        super().__init__()
        hidden = target.hidden_size
        self.shape = shape = settings.shape(hidden)
        self.feature_norm: nn.Module = nn.Identity()
        if settings.fc_norm:
            self.feature_norm = TapNorms(shape, 3)
        elif settings.norm_before_fc:
            self.feature_norm = shape.norm(3 * hidden)
        self.fuse = nn.Linear(3 * hidden, hidden, bias=False)
        first = PairBlock(shape, norm_before_residual=settings.norm_before_residual)
        self.blocks = nn.ModuleList([first, *(Block(shape) for _ in range(settings.blocks - 1))])
        # In the paper what is fed back is not normed.
        self.norm = shape.norm() if settings.norm_output else nn.Identity()
        self.out_norm = nn.Identity() if settings.norm_output else shape.norm()
        self.lm_head = nn.Linear(hidden, len(ids), bias=False)
        self.is_reduced = len(ids) < target.vocab_size
        if self.is_reduced:
            self.register_buffer("d2t", torch.zeros(len(ids), dtype=torch.int64))
            self.register_buffer("t2d", torch.zeros(target.vocab_size, dtype=torch.bool))
            self.choose(ids)

    def choose(self, ids: Int64[Tensor, " v"]) -> None:
        """Take ascending ids of the target as the vocabulary."""
        self.d2t.copy_(ids - torch.arange(len(ids)))
        self.t2d.zero_()[ids] = True

    @property
    def ids(self) -> Int64[Tensor, " v"] | None:
        """The target's id of each token; None where they are the same."""
        if not self.is_reduced:
            return None
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def enter(self, feature: Float[Tensor, "*b F"], token: Float[Tensor, "*b D"]) -> Tensor:
        """The block's input: fused layers of the target (3 D wide), or the drafter's own state."""
        is_wide = feature.shape[-1] != token.shape[-1]
        state = self.fuse(self.feature_norm(feature)) if is_wide else feature
        return torch.cat([token, state], -1)


class Eagle3Drafter(LearnedDrafter[Recurrence]):
    """One block on three layers of the target, a tree, and a head of its own."""

    name: ClassVar[str] = "eagle3"
    pictures: ClassVar[str] = "sees them in three layers of the target's states; embeds ids only"
    needs: ClassVar[str] = "weights trained for the target, on artifacts with taps"

    @dataclass(frozen=True, kw_only=True)
    class Config(LearnedDrafter.Config):
        """Sizes, tree and objective."""

        ARCHITECTURE: ClassVar[frozenset[str]] = LearnedDrafter.Config.ARCHITECTURE | {
            "taps", "draft_vocab", "prefix", "blocks", "norm_before_residual", "norm_before_fc",
            "fc_norm", "norm_output"
        }  # fmt: skip

        inner: int = 1024  # feed-forward width of the block
        taps: tuple[int, ...] = ()  # three layers, counted from 1; () is low, middle and high
        draft_vocab: int = 32_000  # most frequent tokens of the answers; the target's own if fewer
        prefix: Literal["full", "text_only"] = "full"  # text_only: no slots of pictures
        unroll: int = 7  # draft steps seen in training
        max_bases: int = 64  # positions of a sample from which drafts are unrolled; 0 is all
        decay: float = 0.8  # weight of a draft step against the one before
        blocks: int = 1  # those behind the first read its output alone
        norm_before_residual: bool = False  # the normed state goes on beside the first attention
        norm_before_fc: bool = False  # norm of the three layers side by side
        fc_norm: bool = False  # a norm for each of them
        norm_output: bool = False  # what is fed back is the normed state, as the head reads it

        def __post_init__(self) -> None:
            super().__post_init__()
            for name in ("draft_vocab", "unroll", "blocks"):
                if getattr(self, name) < 1:
                    raise BadOption(f"{name} must be at least 1, got {getattr(self, name)}")
            if self.draft_vocab < self.width:
                raise BadOption(
                    f"draft_vocab must be at least width, got {self.draft_vocab} and {self.width}"
                )
            if self.taps and len(self.taps) != 3:
                raise BadOption(f"taps must be three layers, got {self.taps}")
            if self.fc_norm and self.norm_before_fc:
                raise BadOption("fc_norm and norm_before_fc norm the same layers; take one of them")
            if self.max_bases < 0 or not 0 < self.decay <= 1:
                raise BadOption(
                    "max_bases must be at least 0 and decay in (0, 1], got "
                    f"{self.max_bases} and {self.decay}"
                )

    config: Config
    network: Eagle3Network

    def __init__(self, target: Target, config: Config) -> None:
        super().__init__(target, config)
        self.want = Want(layers=layers_of(target, config.taps))
        # Until the answers of a recording are known, any tokens do.
        ids = self._most_frequent(torch.zeros(target.vocab_size, dtype=torch.int64))
        self.network = Eagle3Network(target, config, ids).to(target.device)
        self._banned = torch.zeros(len(ids), device=target.device)
        if not self.network.is_reduced:
            self._banned[sorted(target.banned_ids)] = float("-inf")

    def prepare(self) -> None:
        """The target's precision, and the map of the vocabulary checked. Raises BadArtifact."""
        self._check_vocabulary()
        super().prepare()

    @property
    def vocabulary(self) -> Int64[Tensor, " v"] | None:
        """The target's ids that it can propose; None where all of them."""
        return self.network.ids

    # -- decoding ------------------------------------------------------------------------------

    def start(self, prompt: Prompt, prefill: Forward, root: int) -> Recurrence:
        """Read the prompt."""
        following = self._embed([*prompt.tokens[1:].tolist(), root])
        text_only = self.config.prefix == "text_only"
        state = begin(side_by_side(prefill), following, prompt.is_image, text_only=text_only)
        read(self.network, state)
        return state

    def propose(self, state: Recurrence, root: int, budget: Budget) -> DraftTree:
        """Grow a tree below the root."""
        return draft(
            self.network,
            self.target,
            state,
            root,
            self._score,
            self.config.width,
            budget,
            ids=self.vocabulary,
        )

    def observe(self, state: Recurrence, verdict: Verification, seen: Forward) -> None:
        """Keep the true features of the accepted path for the next draft; no computation yet."""
        note(state, side_by_side(seen), self._embed(verdict.tokens))

    def _score(self, states: Float[Tensor, "n D"], depth: int) -> Scored:
        """Log-probabilities of the next token for each state, over the own vocabulary."""
        logits = self.network.lm_head(self.network.out_norm(states)).float() + self._banned
        return logits.log_softmax(-1), None

    # -- training ------------------------------------------------------------------------------

    def survey(self, data: Subset) -> None:
        """Choose the vocabulary before the first update; refuses a recording without its layers."""
        known = data.store.manifest.origin.taps
        find_layers(self.want.layers, known, self.name, str(data.store.folder))
        if self.network.is_reduced:
            self.network.choose(self._most_frequent(data.answer_counts()))

    def loss(self, batch: list[Artifact], progress: float) -> Losses:
        """Cross entropy with the target's law over the own vocabulary, unrolled; states are free.

        States before which the target says a token that the vocabulary lacks do not count.
        """
        config, network = self.config, self.network
        text_only = config.prefix == "text_only"
        slots = collate(
            batch, self.target, self._taps_of, text_only=text_only, max_bases=config.max_bases
        )
        if slots.bases.shape[1] == 0:
            return nothing(network)
        teacher = Teacher(self.target, slots.final, slots.answer, self.vocabulary)

        def judge(step: int, h: Tensor, place: Tensor, alive: Tensor) -> Judged:
            row = gather(teacher.place, place)
            counts = alive & teacher.known[row]
            log_q = network.lm_head(network.out_norm(h[counts])).float().log_softmax(-1)
            row = row[counts]
            hits = (log_q.argmax(-1) == teacher.labels[row]).float().sum()
            return Judged({"ce": -(teacher.p[row] * log_q).sum()}, hits, counts.sum())

        weights = [config.decay**step for step in range(config.unroll)]
        parts, agree = unroll(Chain(network, slots), slots, weights, judge)
        return Losses(parts["ce"], {name: v.detach() for name, v in (parts | agree).items()})

    def _taps_of(self, item: Artifact) -> Float[Tensor, "T F"]:
        """The three layers side by side."""
        return recorded(item, self.want.layers, self.name)

    # -- vocabulary ----------------------------------------------------------------------------

    def _most_frequent(self, counts: Int64[Tensor, " V"]) -> Int64[Tensor, " v"]:
        """The ids of the vocabulary, ascending: the most frequent ones, then the lowest.

        All of the target's where the setting allows as many as may be proposed at all.
        """
        banned = self.target.banned_ids
        allowed = [i for i in range(self.target.vocab_size) if i not in banned]
        if self.config.draft_vocab >= len(allowed):
            return torch.arange(self.target.vocab_size)
        often = counts.tolist()
        best = sorted(allowed, key=lambda i: -often[i])[: self.config.draft_vocab]
        return torch.tensor(sorted(best))

    def _check_vocabulary(self) -> None:
        """Refuse a map that does not lead into the target's vocabulary, each id once."""
        own = self.vocabulary
        if own is None:
            return
        ids, size = own.tolist(), self.target.vocab_size
        problems = []
        if outside := [i for i in ids if not 0 <= i < size]:
            problems.append(f"{len(outside)} ids lie outside 0..{size - 1}, such as {outside[0]}")
        if repeated := len(ids) - len(set(ids)):
            problems.append(f"{repeated} ids are repeated")
        if banned := sorted(set(ids) & self.target.banned_ids):
            problems.append(f"{len(banned)} ids are never to be proposed, such as {banned[0]}")
        marked = set(self.network.t2d.nonzero()[:, 0].tolist())
        if marked != set(ids):
            problems.append(f"t2d marks {len(marked)} ids, and d2t leads to {len(set(ids))} others")
        if problems:
            raise BadArtifact(
                f"the vocabulary of this {self.name} is damaged: {'; '.join(problems)}. d2t holds "
                "offsets (id - own id), t2d marks the same ids; convert or train it again"
            )
