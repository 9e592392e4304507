"""Checks of what a drafter shares with its target: vocabulary, embeddings, head, features, card."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from varifocal.drafter import Drafter
from varifocal.drafters._weights import Card, network_of
from varifocal.evaluation._findings import Finding, attempt, skipped
from varifocal.targets._hf import HFTarget

DRAFTER_CHECKS = ("drafter.weights", "drafter.features", "drafter.tables", "drafter.vocabulary")


def check_drafter(target: HFTarget, drafter: Drafter[Any], card: Card | None) -> list[Finding]:
    """All checks that need no request. A drafter that loads was made for this fingerprint."""
    weights, features, tables, vocabulary = DRAFTER_CHECKS
    return [
        attempt(weights, lambda: _weights(weights, target, drafter, card)),
        attempt(features, lambda: _features(features, target, drafter)),
        attempt(tables, lambda: _tables(tables, target, drafter)),
        attempt(vocabulary, lambda: _vocabulary(vocabulary, target, drafter)),
    ]


def _weights(check: str, target: HFTarget, drafter: Drafter[Any], card: Card | None) -> Finding:
    """They are numbers, and it is known whom they were trained for."""
    network = network_of(drafter)
    if network is None:
        return skipped(check, f"{drafter.name} has no weights")
    tensors = network.state_dict()
    broken = [n for n, t in tensors.items() if not bool(t.isfinite().all())]
    count = sum(p.numel() for p in network.parameters())
    numbers = {"parameters": count, "not_finite": broken, "fingerprint": target.fingerprint}
    if broken:
        return Finding(
            check=check,
            verdict="fault",
            measured=f"{len(broken)} of {len(tensors)} tensors hold NaN or infinity in "
            f"{target.dtype}, the first is {broken[0]}",
            way_out="load it in bfloat16 or float32, or train it again",
            numbers=numbers,
        )
    if card is None:
        return Finding(
            check=check,
            verdict="warning",
            measured=f"{count:,} parameters; no card says for which target they were trained",
            way_out="load it from the folder that `varifocal train` wrote",
            numbers=numbers,
        )
    return Finding(
        check=check,
        verdict="ok",
        measured=f"{count:,} parameters after {card.steps} updates, trained for this target "
        f"(fingerprint {target.fingerprint})",
        numbers=numbers | {"steps": card.steps, "data": card.data, "scores": card.scores},
    )


def _features(check: str, target: HFTarget, drafter: Drafter[Any]) -> Finding:
    """It wants layers that the target has."""
    want = drafter.want
    wanted = [f"layer {n}" for n in want.layers]
    wanted += ["the final state"] * want.final + ["the embeddings"] * want.embeddings
    numbers = {"layers": list(want.layers), "final": want.final, "embeddings": want.embeddings}
    if not wanted:
        return skipped(check, f"{drafter.name} reads no features")
    wrong = [n for n in want.layers if not 1 <= n <= target.num_layers]
    if wrong or len(set(want.layers)) < len(want.layers):
        return Finding(
            check=check,
            verdict="fault",
            measured=f"it wants the layers {list(want.layers)}, each once and counted from 1, but "
            f"the target has {target.num_layers}",
            way_out="layers are counted from 1, the embeddings are layer 0 elsewhere: correct the "
            "drafter's `want`, or use the target that it was trained for",
            numbers=numbers,
        )
    return Finding(
        check=check,
        verdict="ok",
        measured=f"it reads {', '.join(wanted)}; the target has {target.num_layers} layers, width "
        f"{target.hidden_size}",
        numbers=numbers,
    )


@torch.inference_mode()
def _tables(check: str, target: HFTarget, drafter: Drafter[Any]) -> Finding:
    """Embeddings and head are the target's, or known to be copies that differ."""
    network = network_of(drafter)
    if network is None:
        return skipped(check, f"{drafter.name} has no weights")
    own = drafter.vocabulary
    ids = torch.arange(target.vocab_size) if own is None else own.cpu()
    if _map_problems(target, drafter, ids.tolist() if own is not None else []):
        return skipped(check, "its map of the vocabulary is wrong: see drafter.vocabulary")
    every = torch.arange(target.vocab_size, device=target.device)
    readout = getattr(target.readout, "weight", None)
    same: list[tuple[str, str, float]] = []  # name, kind, largest difference
    unlike: list[tuple[str, str, float]] = []
    for name, module in network.named_modules():
        kind, theirs = _table_of(module, target, len(ids))
        if kind is None or theirs is None:
            continue
        ours = target.embed(every) if kind == "embeddings" else readout
        if ours is None:
            continue
        ours = ours if len(theirs) == target.vocab_size else ours[ids.to(ours.device)]
        gap = float((ours.float() - theirs.to(ours).float()).abs().max())
        (same if gap == 0 else unlike).append((name, kind, gap))
    numbers = {"vocab_size": target.vocab_size, "hidden_size": target.hidden_size,
               "own": {name: gap for name, _, gap in same + unlike}}  # fmt: skip
    if unlike:
        name, kind, gap = max(unlike, key=lambda row: row[2])
        return Finding(
            check=check,
            verdict="warning",
            measured=f"{name} is a table of {kind} of its own, up to {gap:.2g} from the target's",
            way_out="right if the method trains it; else its checkpoint belongs to another target",
            numbers=numbers,
        )
    copies = f"; exact copies: {', '.join(n for n, *_ in same)}" if same else ""
    return Finding(
        check=check,
        verdict="ok",
        measured=f"it uses the target's own embeddings and head: {target.vocab_size} tokens, "
        f"width {target.hidden_size}{copies}",
        numbers=numbers,
    )


def _table_of(
    module: nn.Module, target: HFTarget, vocabulary: int
) -> tuple[str | None, Tensor | None]:
    """A module's kind and weight if its size says that it is a table of the vocabulary."""
    sizes = {(rows, target.hidden_size) for rows in (target.vocab_size, vocabulary)}
    kinds = ((nn.Embedding, "embeddings"), (nn.Linear, "logits"))
    for cls, kind in kinds:
        if isinstance(module, cls) and tuple(module.weight.shape) in sizes:
            return kind, module.weight.detach()
    return None, None


def _vocabulary(check: str, target: HFTarget, drafter: Drafter[Any]) -> Finding:
    """A reduced vocabulary maps into the target's: inside it, each id once, none banned."""
    own = drafter.vocabulary
    if own is None:
        return skipped(check, f"{drafter.name} has the target's vocabulary, no map")
    ids = own.tolist()
    problems = _map_problems(target, drafter, ids)
    numbers = {"count": len(ids), "vocab_size": target.vocab_size, "problems": problems}
    if problems:
        return Finding(
            check=check,
            verdict="fault",
            measured=f"its map of {len(ids)} ids is wrong: {'; '.join(problems)}",
            way_out="the map must hold ids of the target (not offsets), each once, in the order of "
            "the drafter's own ids; convert or train it again",
            numbers=numbers,
        )
    return Finding(
        check=check,
        verdict="ok",
        measured=f"{len(ids)} of {target.vocab_size} ids, each inside the vocabulary and once",
        numbers=numbers,
    )


def _map_problems(target: HFTarget, drafter: Drafter[Any], ids: Sequence[int]) -> list[str]:
    problems = []
    if outside := [i for i in ids if not 0 <= i < target.vocab_size]:
        problems.append(f"{len(outside)} lie outside the vocabulary, such as {outside[0]}")
    if repeated := len(ids) - len(set(ids)):
        problems.append(f"{repeated} are repeated")
    if banned := sorted(set(ids) & target.banned_ids):
        problems.append(f"{len(banned)} are banned, such as {banned[0]}")
    network = network_of(drafter)
    for name, buffer in network.named_buffers() if network is not None else ():
        if buffer.dtype == torch.bool and buffer.shape == (target.vocab_size,):
            marked = set(buffer.nonzero()[:, 0].tolist())
            if marked != set(ids):
                problems.append(f"{name} marks {len(marked)} ids, and not the same")
    return problems
