"""One row being decoded by varifocal's loop, with transformers' processors and criteria."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from varifocal.commit import Commit
from varifocal.decode import Generation
from varifocal.drafter import Drafter
from varifocal.errors import BadOption
from varifocal.huggingface._output import Answer
from varifocal.huggingface._rows import GivenInputs, Row
from varifocal.huggingface._settings import Settings
from varifocal.plan import CostModel
from varifocal.processors import Processor
from varifocal.request import Message, Request
from varifocal.targets._hf import HFTarget
from varifocal.tree import DraftTree

# A request holds a conversation; that of this one is in its ids.
_GIVEN = (Message("user", ("(given as ids)",)),)


class NodeProcessor(Processor):
    """transformers' logits processors, called for each node with the ids that lead to it.

    They must be functions of ids and scores, as their contract says: nodes are asked about that
    never become text. Where `keeps`, the rows of tokens that do become text stay.
    """

    def __init__(self, listed: Sequence[Any], prompt: Int64[Tensor, "1 P"], keeps: bool) -> None:
        self.is_idle = False
        self._listed, self._text, self._keeps = list(listed), prompt, keeps
        self._pending: tuple[Tensor, Tensor, DraftTree | None] | None = None
        self.logits: list[Float[Tensor, "1 V"]] = []
        self.scores: list[Float[Tensor, "1 V"]] = []

    def append(self, tokens: Sequence[int]) -> None:
        """These tokens now belong to the answer."""
        new = torch.tensor([list(tokens)], dtype=self._text.dtype, device=self._text.device)
        self._text = torch.cat([self._text, new], 1)
        if not self._keeps or self._pending is None:
            return
        logits, scores, tree = self._pending
        for node in _path(tree, tokens):
            self.logits.append(logits[node : node + 1].clone())
            self.scores.append(scores[node : node + 1].clone())
        self._pending = None

    def __call__(
        self, logits: Float[Tensor, "N V"], tree: DraftTree | None = None
    ) -> Float[Tensor, "N V"]:
        """Scores of every node; without a tree of the one row that follows the text."""
        raw = logits.float()
        if tree is None:
            self._check_repeatable(raw)
            scores = self._processed(self._text, raw)
        else:
            scores = self._of_nodes(raw, tree)
        if self._keeps:
            self._pending = (raw, scores, tree)
        return scores

    def _of_nodes(self, raw: Float[Tensor, "N V"], tree: DraftTree) -> Float[Tensor, "N V"]:
        """Row by row. Texts that a processor itself has excluded are not put before it."""
        scores = raw.clone()
        parents, tokens = tree.parents.tolist(), tree.tokens.tolist()
        is_open = [True]
        for node, above in enumerate(tree.ancestry):
            if node:
                parent = parents[node]
                last = float(scores[parent, tokens[node]])
                is_open.append(is_open[parent] and last != -math.inf)
            if is_open[node]:
                path = tree.tokens[above][1:].to(self._text.device)  # the root is in the text
                ids = torch.cat([self._text, path[None]], 1)
                scores[node] = self._processed(ids, raw[node : node + 1])[0]
        return scores

    def _processed(self, ids: Int64[Tensor, "1 P"], row: Float[Tensor, "1 V"]) -> Tensor:
        scores = row.to(ids.device, copy=True)  # some change it in place
        for one in self._listed:
            scores = one(ids, scores)
        return scores.to(row.device)

    def _check_repeatable(self, row: Float[Tensor, "1 V"]) -> None:
        """Refuse processors of the caller's that answer the same question differently."""
        for one in self._listed:
            if type(one).__module__.startswith("transformers."):
                continue
            first, second = (one(self._text, row.clone()) for _ in range(2))
            if not torch.equal(first, second):
                raise BadOption(
                    f"the logits processor {type(one).__name__} gives different scores for the "
                    "same ids, so drafts would change what it does; make it a function of "
                    "(input_ids, scores), or call model.generate without varifocal"
                )


def _path(tree: DraftTree | None, tokens: Sequence[int]) -> list[int]:
    """The nodes after which these tokens came: the root, and those of all but the last."""
    if tree is None:
        return [0]
    edges = zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)
    child = {edge: node for node, edge in enumerate(edges)}
    path = [0]
    for token in tokens[:-1]:
        path.append(child[path[-1], token])
    return path


class CriteriaCommit(Commit):
    """Also ends where one of transformers' stopping criteria says so, asked after every token."""

    def __init__(
        self, target: HFTarget, room: int, criteria: Sequence[Any], prompt: Int64[Tensor, "1 P"]
    ) -> None:
        super().__init__(target.decode, target.eos_ids, room)
        self._criteria, self._ids = list(criteria), prompt

    def _push_one(self, token: int) -> None:
        super()._push_one(token)
        self._ids = torch.cat([self._ids, self._ids.new_tensor([[token]])], 1)
        done = [bool(one(self._ids, None).all()) for one in self._criteria]
        if any(done) and self.finish_reason is None:
            self.finish_reason = "stop"


class Run(Generation):
    """A row being decoded: iterate, then ask for the `answer`."""

    def __init__(
        self,
        target: HFTarget,
        drafter: Drafter[Any],
        row: Row,
        settings: Settings,
        cost: CostModel | None,
    ) -> None:
        request = Request(
            messages=_GIVEN, max_new_tokens=settings.max_new_tokens, sampling=settings.sampling
        )
        self._given = GivenInputs(target, row, drafter.want, request)
        super().__init__(target, drafter, request, cost=cost, reading=self._given)
        if settings.processors or settings.keeps_scores:
            self._processor = NodeProcessor(settings.processors, row.padded, settings.keeps_scores)
        if settings.criteria:
            self._commit = CriteriaCommit(
                target, settings.max_new_tokens, settings.criteria, row.padded
            )

    def answer(self) -> Answer:
        """Everything that was decided, and the cache up to what the model has read of it."""
        result, cache = self.result(), self._given.cache
        num_read = len(result.token_ids) - 1  # the newest token has not been read
        # Accepted tokens behind the end are no part of the text.
        cache.keep(range(num_read), cache.length - len(self.prompt.tokens))
        kept = self._processor if isinstance(self._processor, NodeProcessor) else None
        count = len(result.token_ids)
        return Answer(
            result,
            cache,
            logits=[] if kept is None else kept.logits[:count],
            scores=[] if kept is None else kept.scores[:count],
        )
