"""DREAM: a stream of tokens and pictures that reads the target's states by cross-attention. [DREAM]

The stream is not shifted: row p is what the target itself reads at position p, and attends to the
target's states of positions before p alone. Its output stands for the state at p; a draft reads the
outputs of a node's ancestors as if they were the target's, and of no other branch, which the
published code does. Left out: noise on the features, since the unroll meets the draft's own errors;
and the pruning of visual tokens, which the published code does not do either.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from varifocal.drafters._blocks import (
    Block,
    BlockShape,
    DraftCache,
    Rotation,
    attend,
    rotation,
    rotation_at,
    shared_heads,
)
from varifocal.drafters._growth import Frontier, Scored, grow
from varifocal.drafters._learned import LearnedDrafter, TargetHeadDrafter
from varifocal.drafters._recurrence import note
from varifocal.drafters._unroll import (
    Judged,
    Teacher,
    attend_chain,
    bases_of,
    gather,
    nothing,
    unroll,
)
from varifocal.errors import BadArtifact, BadOption
from varifocal.plan import Budget
from varifocal.target import Forward, Prompt, Target, Want
from varifocal.training.artifacts import Artifact
from varifocal.training.losses import Losses, depth_weight
from varifocal.tree import DraftTree
from varifocal.verify import Verification


class CrossBlock(nn.Module):
    """Rows of the stream read states of the target; two gates say how much of it comes in."""

    def __init__(self, shape: BlockShape, gate: float) -> None:
        super().__init__()
        self.shape = shape
        reach = shape.heads * shape.head_width
        self.attention_norm = shape.norm()
        self.query = nn.Linear(shape.hidden, reach, bias=False)
        rows = 2 * shape.kv_heads * shape.head_width
        self.keys_values = nn.Linear(shape.hidden, rows, bias=False)
        self.query_norm = shape.norm(shape.head_width)
        self.key_norm = shape.norm(shape.head_width)
        self.out = nn.Linear(reach, shape.hidden, bias=False)
        self.attention_gate = nn.Parameter(torch.full((1,), gate))
        self.inner_norm = shape.norm()
        self.gate_up = nn.Linear(shape.hidden, 2 * shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, shape.hidden, bias=False)
        self.inner_gate = nn.Parameter(torch.full((1,), gate))

    def ask(self, x: Float[Tensor, "*b n D"]) -> Float[Tensor, "*b H n dh"]:
        """Queries; they have no positions."""
        made = self.query(self.attention_norm(x)).unflatten(-1, (-1, self.shape.head_width))
        queries: Tensor = self.query_norm(made).transpose(-2, -3)
        return queries

    def offer(self, states: Float[Tensor, "*b m D"]) -> tuple[Tensor, Tensor]:
        """Keys and values [*b, G, m, dh] of states; of a state of zeros, zeros."""
        made = self.keys_values(states).unflatten(-1, (-1, self.shape.head_width))
        keys, values = made.chunk(2, -2)
        return self.key_norm(keys).transpose(-2, -3), values.transpose(-2, -3)

    def finish(
        self, x: Float[Tensor, "*b n D"], read: Float[Tensor, "*b H n dh"]
    ) -> Float[Tensor, "*b n D"]:
        """The block's output from what its attention read."""
        x = x + self.attention_gate.tanh() * self.out(read.transpose(-2, -3).flatten(-2))
        gate, up = self.gate_up(self.inner_norm(x)).chunk(2, -1)
        grown: Tensor = x + self.inner_gate.tanh() * self.down(F.silu(gate) * up)
        return grown


class DreamNetwork(nn.Module):
    """Self-attention, cross-attention, self-attention; embeddings and head are the target's."""

    def __init__(self, hidden: int, settings: "DreamDrafter.Config") -> None:
        super().__init__()
        self.shape = shape = settings.shape(hidden)
        self.token_norm = shape.norm() if settings.token_norm else nn.Identity()
        self.first = Block(shape, has_input_norm=False)
        self.cross = CrossBlock(shape, settings.gate_init)
        self.last = Block(shape)
        # The states that it imitates need not have zero mean.
        self.norm = shape.norm(bias=True)

    def run(
        self,
        state: "DreamState",
        tokens: Float[Tensor, "n D"],
        states: Float[Tensor, "m D"],
        turn: Rotation,
        *,
        sees: Bool[Tensor, "n s"] | None = None,
        hears: Bool[Tensor, "h t"] | None = None,
        wanted: int,
    ) -> Float[Tensor, "w D"]:
        """New rows behind those in the caches; the outputs of the last `wanted` of them.

        `states` are new too. `sees` and `hears` say which of the newest rows and states each row
        reads, besides all older ones; where `hears` has fewer rows, the first ones hear nothing.
        """
        x = self.token_norm(tokens)
        q, k, v = self.first.project(x, turn)
        x = self.first.finish(x, attend(q, *state.cache.append(0, k, v), sees))
        deaf = 0 if hears is None else len(x) - len(hears)
        heard = state.heard.append(0, *self.cross.offer(states))
        read = attend(self.cross.ask(x[deaf:]), *heard, hears)
        x = self.cross.finish(x, F.pad(read, (0, 0, deaf, 0)) if deaf else read)
        q, k, v = self.last.project(x, turn)
        seen = None if sees is None else sees[-wanted:]
        read = attend(q[:, -wanted:], *state.cache.append(1, k, v), seen)
        return self.norm(self.last.finish(x[-wanted:], read))  # type: ignore[no-any-return]


@dataclass
class DreamState:
    """One request: what the stream and the cross-attention hold, and what is not read yet."""

    features: Float[Tensor, "m D"]  # target states not read yet ...
    tokens: Float[Tensor, "n D"]  # ... embeddings of the tokens after them, before which
    positions: Int64[Tensor, " n"]  # the prompt's first may stand; and where these stand
    next_position: int  # of the token after the root
    cache: DraftCache = field(default_factory=DraftCache)  # of both blocks of self-attention
    heard: DraftCache = field(default_factory=DraftCache)  # of the cross-attention
    top: Float[Tensor, "1 D"] | None = field(default=None, repr=False)  # the root's output


class DreamDrafter(TargetHeadDrafter[DreamState]):
    """Reads what the target reads and attends to what the target made of it; drafts a tree."""

    name: ClassVar[str] = "dream"
    pictures: ClassVar[str] = "reads all visual tokens, and attends to the target's states of them"
    needs: ClassVar[str] = "weights trained for the target"
    want = Want(final=True, embeddings=True)

    @dataclass(frozen=True, kw_only=True)
    class Config(LearnedDrafter.Config):
        """Sizes, tree and objective; the paper has token_norm=False, unroll=1, gate_init=0."""

        ARCHITECTURE: ClassVar[frozenset[str]] = LearnedDrafter.Config.ARCHITECTURE | {
            "prefix", "token_norm", "gate_init"
        }  # fmt: skip

        prefix: Literal["full", "text_only"] = "full"  # text_only: nothing of the pictures' slots
        token_norm: bool = True  # norm of the embeddings that enter
        gate_init: float = 1.0  # both gates to begin with; closed ones, at 0, open slowly
        unroll: int = 6  # draft steps seen in training
        max_bases: int = 64  # positions of a sample from which drafts are unrolled; 0 is all
        gamma_w: float = 1.0  # decay of the weight over draft steps, as FOVEA's
        regression: float = 0.2  # weight of smooth L1 between draft state and target state
        classification: float = 1.0  # weight of the cross entropy with the target's law
        intermediate: float = 1.0  # weight of smooth L1 to the state of least attention entropy

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.prefix not in ("full", "text_only"):
                raise BadOption(f'prefix must be "full" or "text_only", got {self.prefix!r}')
            if self.unroll < 1 or self.max_bases < 0:
                wanted = "unroll must be at least 1 and max_bases at least 0"
                raise BadOption(f"{wanted}, got {self.unroll} and {self.max_bases}")
            if self.gamma_w <= 0:
                raise BadOption(f"gamma_w must be positive, got {self.gamma_w}")

    config: Config
    network: DreamNetwork

    def __init__(self, target: Target, config: Config) -> None:
        super().__init__(target, config)
        self.network = DreamNetwork(target.hidden_size, config).to(target.device)

    # -- decoding ------------------------------------------------------------------------------

    def start(self, prompt: Prompt, prefill: Forward, root: int) -> DreamState:
        """Read the prompt and the root."""
        assert prefill.final is not None and prefill.embeddings is not None
        tokens = torch.cat([prefill.embeddings, self._embed([root])])
        image_of = F.pad(prompt.image_of.to(tokens.device), (0, 1), value=-1)
        positions = _kept(image_of, self.config.prefix)
        features = prefill.final[positions[positions > 0] - 1]
        state = DreamState(features, tokens[positions], positions, len(tokens))
        self._read(state)
        return state

    def propose(self, state: DreamState, root: int, budget: Budget) -> DraftTree:
        """Grow a tree below the root."""
        self._read(state)
        assert state.top is not None
        above = state.top  # outputs of the last expanded level, which the cross-attention lacks

        def expand(frontier: Frontier) -> Scored:
            nonlocal above
            size = len(frontier.tokens)
            tokens = self.target.embed(frontier.tokens).to(above.dtype)
            place = state.next_position - 1 + frontier.depth
            turn = rotation_at(place, self.network.shape, above.dtype, above.device)
            # A node hears its ancestors; of the drafted ones, those that it sees besides itself.
            hears = frontier.sees[:, :-size] if frontier.depth > 1 else None
            made = self.network.run(
                state, tokens, above, turn, sees=frontier.sees, hears=hears, wanted=size
            )
            state.cache.advance(size)
            state.heard.advance(len(above))
            above = made
            return self._log_probs(above), None

        tree = grow(root, (self._log_probs(above), None), expand, self.config.width, budget)
        state.cache.rewind()
        state.heard.rewind()
        return tree

    def observe(self, state: DreamState, verdict: Verification, seen: Forward) -> None:
        """Keep the true features of the accepted path for the next draft; no computation yet."""
        assert seen.final is not None
        note(state, seen.final, self._embed(verdict.tokens))

    def _read(self, state: DreamState) -> None:
        """Read what is pending into the stable caches; the last row's output is the root's."""
        n, m = len(state.tokens), len(state.features)
        if not n:
            return
        kind = self.network.cross.query.weight.dtype
        sees = torch.ones(n, n, dtype=torch.bool, device=state.tokens.device).tril()
        state.top = self.network.run(
            state,
            state.tokens.to(kind),
            state.features.to(kind),
            rotation(state.positions, self.network.shape, kind),
            sees=sees if n > 1 else None,
            hears=sees[n - m :, n - m :] if n > 1 else None,
            wanted=1,
        )
        state.cache.advance(n, stable=True)
        state.heard.advance(m, stable=True)
        read = (state.features, state.tokens, state.positions)
        state.features, state.tokens, state.positions = (x[:0] for x in read)

    # -- training ------------------------------------------------------------------------------

    def loss(self, batch: list[Artifact], progress: float) -> Losses:
        """Smooth L1 of last and middle states, cross entropy of the laws, over an unroll."""
        config, target = self.config, self.target
        rows = _collate(batch, target, config)
        if rows.bases.shape[1] == 0:
            return nothing(self.network)
        chain, teacher = _Chain(self.network, rows), Teacher(target, rows.features, rows.answer)

        def judge(step: int, h: Tensor, place: Tensor, alive: Tensor) -> Judged:
            states, row = h[alive].float(), gather(teacher.place, place)[alive]
            log_q = target.head(states.to(target.dtype)).float().log_softmax(-1)
            values = {
                "regression": _distance(states, gather(rows.features, place)[alive]),
                "classification": -(teacher.p[row] * log_q).sum(),
            }
            if rows.mid is not None:
                # The streams differ in scale from layer to layer; both are taken at unit RMS.
                wanted = gather(rows.mid, place)[alive]
                values["intermediate"] = _distance(_unit(chain.mid[alive].float()), _unit(wanted))
            hits = (log_q.argmax(-1) == teacher.labels[row]).float().sum()
            return Judged(values, hits, alive.sum())

        weights = [depth_weight(n + 1, config.gamma_w) for n in range(config.unroll)]
        parts, agree = unroll(chain, rows, weights, judge)
        total = torch.stack([getattr(config, name) * value for name, value in parts.items()]).sum()
        return Losses(total, {name: value.detach() for name, value in (parts | agree).items()})


@dataclass(frozen=True)
class _Rows:
    """A padded batch as the drafter reads it; R rows, token u_r and the states around it."""

    features: Float[Tensor, "B R D"]  # before u_r, which the head reads; 0 before the first token
    mid: Float[Tensor, "B R D"] | None  # likewise, of the layer of least attention entropy
    embeddings: Float[Tensor, "B R D"]  # of u_r; of a picture, the projected visual token
    positions: Int64[Tensor, "B R"]
    answer: Bool[Tensor, "B R"]  # u_r is supervised
    bases: Int64[Tensor, "B A"]  # rows whose u_r is a root that a draft continues
    bases_valid: Bool[Tensor, "B A"]


def _collate(batch: list[Artifact], target: Target, config: DreamDrafter.Config) -> _Rows:
    """Shift the states as in decoding, leave pictures out if the drafter does, pad."""
    rows = [(item, _kept(item.image_of, config.prefix)) for item in batch]

    def pad(xs: list[Tensor]) -> Tensor:
        return pad_sequence(xs, batch_first=True).to(target.device)

    embeddings = target.embed(pad([item.tokens[index] for item, index in rows])).float().detach()
    if config.prefix == "full":
        is_image = pad([item.image_of[index] >= 0 for item, index in rows])
        embeddings[is_image] = torch.cat([item.visual for item in batch]).to(embeddings)
    answer = pad([item.supervised[index] for item, index in rows])
    bases, bases_valid = bases_of(answer, config.max_bases)
    return _Rows(
        features=pad([_before(item.final)[index] for item, index in rows]),
        mid=pad([_mid_of(item)[index] for item, index in rows]) if config.intermediate else None,
        embeddings=embeddings,
        positions=pad([index for _, index in rows]),
        answer=answer,
        bases=bases,
        bases_valid=bases_valid,
    )


def _kept(image_of: Int64[Tensor, " T"], prefix: str) -> Int64[Tensor, " R"]:
    """The positions that are read."""
    positions = torch.arange(len(image_of), device=image_of.device)
    return positions if prefix == "full" else positions[image_of < 0]


def _before(states: Float[Tensor, "T D"]) -> Float[Tensor, "T D"]:
    """Of each token, the state of the one before it."""
    return F.pad(states[:-1].float(), (0, 0, 1, 0))


def _mid_of(item: Artifact) -> Float[Tensor, "T D"]:
    if item.mid is None:
        raise BadArtifact(
            f"dream learns from states of the layer of least attention entropy, and {item.id} has "
            "none. Record it again with `varifocal record`, or go without: --set intermediate=0"
        )
    return _before(item.mid)


class _Chain:
    """Draft states of all bases, step by step: `mid` before the last block, `h` after all."""

    def __init__(self, network: DreamNetwork, rows: _Rows) -> None:
        self.network, self.rows = network, rows
        x = network.token_norm(rows.embeddings)
        own = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        causal = torch.ones_like(own).tril()[None]
        # Before the first token there is no state: its row reads the zeros in that place.
        has_state = (rows.positions > 0)[:, None]
        self.sees = causal[0][rows.bases]  # [B, A, R]
        self.hears = self.sees & has_state
        turn = rotation(rows.positions, network.shape, x.dtype)
        q, k, v = network.first.project(x, turn)
        # It depends on the tokens alone, so what it is for true rows it is for drafted ones.
        self.stream = network.first.finish(x, attend_chain(q, self._shared(k, v), (), causal))
        self.states = self._shared(*network.cross.offer(rows.features))
        q = network.cross.ask(self.stream)
        read = attend_chain(q, self.states, (), causal & (has_state | own))
        x = network.cross.finish(self.stream, read)
        q, k, v = network.last.project(x, turn)
        self.past = self._shared(k, v)
        self.drafted_states: list[tuple[Tensor, Tensor]] = []
        self.drafted: list[tuple[Tensor, Tensor]] = []
        # Of rows that are no bases only keys and values are read from here on.
        row = rows.bases[:, None, :, None].expand(-1, q.shape[1], -1, q.shape[3])
        self._finish(gather(x, rows.bases), q.gather(2, row))

    def advance(self, step: int) -> None:
        """Draft one token further from every base, on its own states."""
        network, place = self.network, self.rows.bases + 1 + step
        x = gather(self.stream, place)
        self.drafted_states.append(self._shared(*network.cross.offer(self.h)))
        q = network.cross.ask(x)
        x = network.cross.finish(x, attend_chain(q, self.states, self.drafted_states, self.hears))
        turn = rotation(gather(self.rows.positions, place), network.shape, x.dtype)
        q, k, v = network.last.project(x, turn)
        self.drafted.append(self._shared(k, v))
        self._finish(x, q)

    def _finish(self, x: Float[Tensor, "B A D"], q: Float[Tensor, "B H A dh"]) -> None:
        """Run the last block's rows."""
        self.mid = x
        read = attend_chain(q, self.past, self.drafted, self.sees)
        self.h = self.network.norm(self.network.last.finish(x, read))

    def _shared(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        heads = self.network.shape.heads
        return shared_heads(keys, heads), shared_heads(values, heads)


def _distance(states: Float[Tensor, "n D"], wanted: Float[Tensor, "n D"]) -> Float[Tensor, ""]:
    """Smooth L1, the mean over the width summed over the states."""
    return F.smooth_l1_loss(states, wanted, reduction="none").mean(-1).sum()


def _unit(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:])
