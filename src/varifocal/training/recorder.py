"""Record a frozen target over conversations: answers, states and visual tokens, once and for all.

An answer is teacher-forced as the target reads it when it is asked again: the prompt of each turn
is `target.encode` of the conversation up to it. Every sample is one fresh prefill of its own,
without padding, so its states are those of a single run whatever is recorded beside it.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

import torch

from varifocal.errors import BadArtifact, BadOption, VarifocalError
from varifocal.request import Message
from varifocal.target import Want
from varifocal.targets._hf import HFTarget
from varifocal.training._answers import Answers
from varifocal.training._entropy import watched
from varifocal.training._files import make_folder
from varifocal.training._room import check_room
from varifocal.training._script import Script, script_of, turns_of
from varifocal.training._taps import checked_taps
from varifocal.training.artifacts import (
    DTYPES,
    LOCK,
    MANIFEST,
    Artifact,
    ArtifactStore,
    Manifest,
    Origin,
    damage_of,
    locked,
    write_shard,
)
from varifocal.training.examples import Example

logger = logging.getLogger(__name__)
Progress = Callable[[int, int], None]  # samples done, samples in all


def search_layers(num_layers: int) -> tuple[int, ...]:
    """Layers searched for `mid`: 1-10 of 32, 1-9 of 28, that share of others. [FOVEA, Table 8]"""
    return tuple(range(1, max(1, round(0.31 * num_layers)) + 1))


def record(
    target: HFTarget,
    examples: Sequence[Example],
    out: Path,
    *,
    answers: Literal["target", "reference"] = "target",
    batch: int = 16,
    shard_size: int = 256,
    max_new_tokens: int = 256,
    dtype: Literal["float16", "bfloat16", "float32"] = "float16",
    taps: Sequence[int] = (),
    progress: Progress | None = None,
) -> ArtifactStore:
    """Record what is not in `out` yet, shard by shard; the same call continues a broken one.

    With answers="target" every assistant turn is what the target says greedily in a run of its own,
    and what later turns follow on: in float32 given texts are checked like a draft, and from the
    first that it would not say on it is said anew, `batch` conversations at a time where that
    changes no answer (see `Answers`). With "reference" given texts are kept. Samples
    that cannot be used are skipped and listed with the reason in the manifest. `taps` are layers,
    counted from 1, whose states are kept too. Ctrl-C keeps all that is done. While it runs, no
    other recording may write into `out`.
    """
    if min(batch, shard_size, max_new_tokens) < 1:
        raise BadOption(
            "batch, shard_size and max_new_tokens must be at least 1, got "
            f"{batch}, {shard_size} and {max_new_tokens}"
        )
    origin = Origin(
        target=target.name,
        fingerprint=target.fingerprint,
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        layers=search_layers(target.num_layers),
        answers=answers,
        max_new_tokens=max_new_tokens,
        dtype=dtype,
        taps=checked_taps(taps, target.num_layers),
    )
    _check_ids(examples)
    _check_folder(out)
    with locked(out):
        manifest = _begun(out, origin)
        session = _Session(target, out, manifest, shard_size)
        _record_rest(session, examples, batch, max_new_tokens, progress)
    if not session.manifest.rows:
        reason = next(iter(session.manifest.skipped.values()), "there were no examples")
        raise BadArtifact(f"nothing could be recorded in {out}: {reason}")
    return ArtifactStore.open(out, check=False)


def _record_rest(
    session: "_Session",
    examples: Sequence[Example],
    batch: int,
    max_new_tokens: int,
    progress: Progress | None,
) -> None:
    """Record the examples that the session's manifest does not list."""
    target, manifest = session.target, session.manifest
    known = {row.id for row in manifest.rows} | set(manifest.skipped)
    todo = [example for example in examples if example.id not in known]
    if todo:
        check_room(target, todo, session.out, manifest.origin)
    says = manifest.origin.answers == "target"
    writer = Answers(target, max_new_tokens, batch=batch) if says else None
    done = len(examples) - len(todo)
    try:
        for start in range(0, len(todo), batch):
            group = todo[start : start + batch]
            session.take(group, writer)
            done += len(group)
            if progress is not None:
                progress(done, len(examples))
    finally:  # also on Ctrl-C: a full disk has raised before and left nothing behind
        session.flush()


class _Session:
    """The recording under way: collects samples and writes a shard when it is full."""

    def __init__(self, target: HFTarget, out: Path, manifest: Manifest, shard_size: int) -> None:
        self.target, self.out, self.manifest, self.shard_size = target, out, manifest, shard_size
        self._waiting: list[Artifact] = []
        self._skipped: dict[str, str] = {}
        self._checked = False

    def take(self, group: Sequence[Example], writer: Answers | None) -> None:
        """Record some examples together."""
        talks: dict[str, tuple[Message, ...]] = {}
        for example in group:
            try:
                talks[example.id] = example.read()
            except VarifocalError as error:
                self._skip(example.id, str(error))
        said: dict[str, list[list[int]]] = {}
        ready: dict[str, Artifact] = {}
        if writer is not None:
            known: dict[str, list[list[int]]] = {}
            for example in group:
                if example.id in talks:
                    sample, known[example.id] = self._confirm(example, talks[example.id], writer)
                    if sample is not None:
                        ready[example.id] = sample
            rest = {id: talk for id, talk in talks.items() if id not in ready}
            talks, said, failed = writer.answer(rest, known)
            for id, reason in failed.items():
                self._skip(id, reason)
        for example in group:
            if example.id in ready:
                self._keep(ready[example.id])
            elif example.id in talks:
                self._record(example, talks[example.id], said.get(example.id))
            if len(self._waiting) >= self.shard_size:
                self.flush()

    def _confirm(
        self, example: Example, talk: tuple[Message, ...], writer: Answers
    ) -> tuple[Artifact | None, list[list[int]]]:
        """The reference answers as a draft: leading ones that the target says itself stay.

        If it says all of them, one forward has made the whole sample. Below float32 that forward
        may settle a near-tie otherwise than the target's own run, so it confirms nothing.
        """
        if self.target.dtype != torch.float32:
            return None, []
        try:
            script = script_of(self.target, talk, None)
        except VarifocalError:
            return None, []
        sample = self._features(example, script)
        known = confirmed(self.target, script, sample, writer.max_new_tokens)
        return (sample if len(known) == len(turns_of(talk)) else None), known

    def _record(
        self, example: Example, talk: tuple[Message, ...], said: list[list[int]] | None
    ) -> None:
        try:
            script = script_of(self.target, talk, said)
        except VarifocalError as error:
            return self._skip(example.id, str(error))
        self._keep(self._features(example, script))

    def _features(self, example: Example, script: Script) -> Artifact:
        taps = self.manifest.origin.taps
        sample = features_of(self.target, example.id, example.family, script, taps)
        if not self._checked:
            _check_features(self.target, script, sample)
            self._checked = True
        return sample

    def _keep(self, sample: Artifact) -> None:
        name = self.manifest.origin.dtype
        states = [sample.final, sample.visual]
        states += [state for state in (sample.mid, sample.taps) if state is not None]
        if not all(bool(s.isfinite().all()) for s in states):
            return self._skip(sample.id, "not finite: the target's states hold NaN or infinity")
        if not all(bool(s.to(DTYPES[name]).isfinite().all()) for s in states):
            return self._skip(
                sample.id, f"not finite in {name}: states are too large; record with bfloat16"
            )
        self._waiting.append(sample)

    def _skip(self, id: str, reason: str) -> None:
        logger.warning("%s is left out: %s", id, reason)
        self._skipped[id] = reason

    def flush(self) -> None:
        """Write what waits, then the manifest that lists it."""
        waiting, self._waiting = self._waiting, []
        try:
            self._write(waiting)
        except KeyboardInterrupt:
            self._waiting = waiting  # for the flush that follows Ctrl-C; a full disk gets no other
            raise

    def _write(self, waiting: Sequence[Artifact]) -> None:
        manifest = replace(self.manifest, skipped={**self.manifest.skipped, **self._skipped})
        if waiting:
            used = {shard.file for shard in manifest.shards}
            file = next(f for f in _names() if f not in used)
            shard = write_shard(self.out, file, waiting, manifest.origin.dtype)
            manifest = replace(manifest, shards=(*manifest.shards, shard))
        if manifest != self.manifest:
            manifest.write(self.out)
            self.manifest = manifest


@torch.no_grad()
def features_of(
    target: HFTarget, id: str, family: str, script: Script, taps: Sequence[int] = ()
) -> Artifact:
    """One fresh prefill of a script; states leaving the layers `taps` are kept."""
    layers = search_layers(target.num_layers)
    supervised = script.supervised
    start = max(0, int(supervised.nonzero()[0]) - 1)
    text_config = target.model.config.get_text_config()
    read = (*layers, *(layer for layer in taps if layer not in layers))
    want = Want(layers=read, final=True, embeddings=True)
    with watched(text_config, len(layers), start) as watch:
        _, seen = target.prefill(script.prompt, want)
    assert seen.hidden is not None and seen.final is not None and seen.embeddings is not None
    chosen = watch.by_layer.argmin(-1)
    mid = torch.zeros_like(seen.final)
    mid[start:] = seen.hidden[start:].gather(1, chosen[:, None, None].expand(-1, 1, mid.shape[-1]))[
        :, 0
    ]
    return Artifact(
        id=id,
        family=family,
        tokens=script.prompt.tokens.cpu(),
        image_of=script.prompt.image_of.cpu(),
        supervised=supervised,
        final=seen.final.float().cpu(),
        visual=seen.embeddings[script.prompt.is_image].float().cpu(),
        mid=mid.float().cpu(),
        taps=seen.hidden[:, [read.index(k) for k in taps]].float().cpu() if taps else None,
        tap_layers=tuple(taps),
    )


@torch.no_grad()
def confirmed(
    target: HFTarget, script: Script, sample: Artifact, max_new_tokens: int
) -> list[list[int]]:
    """The leading answers of a script that the target would give itself, greedily."""
    known = []
    for start, stop in script.spans:
        if not 0 < stop - start <= max_new_tokens:
            break
        states = sample.final[start - 1 : stop - 1].to(target.device, target.dtype)
        tokens = script.prompt.tokens[start:stop]
        if not torch.equal(target.head(states).argmax(-1), tokens):
            break
        known.append(tokens.tolist())
    return known


@torch.no_grad()
def _check_features(target: HFTarget, script: Script, sample: Artifact) -> None:
    """States of the first sample against a run of the whole model that nothing watches."""
    _, seen = target.prefill(script.prompt, Want(final=True))
    assert seen.final is not None
    plain = seen.final.float().cpu()
    close = 1e-3 if target.dtype == torch.float32 else 0.1
    if bool(plain.isfinite().all()) and not torch.allclose(plain, sample.final, close, close):
        worst = float((plain - sample.final).abs().max())
        raise RuntimeError(f"recorded states of {sample.id} are off by {worst} from a fresh run")


def _check_folder(out: Path) -> None:
    """A folder of our own, made if there is none."""
    ours = {LOCK, f"{MANIFEST}.new"}  # what a recording that has just begun leaves for a moment
    is_used = any(path.name not in ours for path in out.glob("*"))
    if is_used and not (out / MANIFEST).exists():
        raise BadOption(f"{out} holds other files; choose a new folder for the recording")
    make_folder(out)


def _begun(out: Path, origin: Origin) -> Manifest:
    """The manifest to continue: that of the folder, without shards that are missing or damaged."""
    if not (out / MANIFEST).exists():
        manifest = Manifest(origin=origin)
        manifest.write(out)
        return manifest
    manifest = Manifest.read(out)
    if manifest.origin != origin:
        raise BadOption(
            f"{out} was recorded with other settings ({_difference(origin, manifest.origin)}); "
            "choose another folder, or the settings of the recording"
        )
    whole = []
    for shard in manifest.shards:
        damage = damage_of(out, shard, contents=True)
        if damage is None:
            whole.append(shard)
        else:
            logger.warning(
                "a damaged file is dropped; its %d samples are recorded again if asked for: %s",
                len(shard.rows),
                damage,
            )
    if len(whole) < len(manifest.shards):
        manifest = replace(manifest, shards=tuple(whole))
        manifest.write(out)  # before the files go, so that it lists what there is after Ctrl-C too
    listed = {shard.file for shard in whole}
    for path in out.glob("shard-*"):
        if path.name not in listed:  # left by a kill, or damaged
            path.unlink()
    return manifest


def _difference(wanted: Origin, got: Origin) -> str:
    """The fields that differ."""
    new, old = asdict(wanted), asdict(got)
    return "; ".join(
        f"{name}: wanted {new[name]}, got {old[name]}" for name in new if new[name] != old[name]
    )


def _check_ids(examples: Sequence[Example]) -> None:
    seen: set[str] = set()
    for example in examples:
        if example.id in seen:
            raise BadOption(f"two examples have the id {example.id!r}; ids must differ")
        seen.add(example.id)


def _names() -> Iterator[str]:
    number = 0
    while True:
        yield f"shard-{number:05d}.safetensors"
        number += 1
