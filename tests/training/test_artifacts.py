"""The store: what goes in comes out, damage is named, and the order of batches is fixed."""

import os
from dataclasses import fields

import pytest
import torch
from fake_learner import made_up, made_up_store

from varifocal.errors import BadArtifact
from varifocal.training.artifacts import MANIFEST, ArtifactStore, write_shard


@pytest.fixture
def store(tmp_path):
    return made_up_store(tmp_path / "store", [made_up(n) for n in range(12)])


def test_samples_come_back_as_they_were_recorded(store):
    assert len(store) == 12
    for number in (11, 0, 7):
        wanted, came = made_up(number), store[number]
        for f in fields(wanted):
            a, b = getattr(wanted, f.name), getattr(came, f.name)
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, f.name


def test_a_number_out_of_range_is_an_index_error(store):
    with pytest.raises(IndexError):
        store[12]


def test_a_folder_without_artifacts_says_how_to_make_some(tmp_path):
    with pytest.raises(BadArtifact, match="varifocal record"):
        ArtifactStore.open(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "flipped", "missing"])
def test_a_damaged_shard_is_named_with_the_way_out(store, damage):
    path = store.folder / "shard-5.safetensors"
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    else:
        data[-3] ^= 0xFF
        path.write_bytes(data[:-9] if damage == "cut" else data)
    with pytest.raises(BadArtifact, match=r"shard-5\.safetensors.*again"):
        ArtifactStore.open(store.folder)


@pytest.mark.parametrize("text", ["", '{"format": "varifocal-artifacts"', "[]", '{"format": "x"}'])
def test_a_damaged_manifest_is_named(store, text):
    (store.folder / MANIFEST).write_text(text)
    with pytest.raises(BadArtifact, match="manifest"):
        ArtifactStore.open(store.folder)


def test_a_manifest_of_another_version_is_refused(store):
    path = store.folder / MANIFEST
    path.write_text(path.read_text().replace('"version": 1', '"version": 99'))
    with pytest.raises(BadArtifact, match="version 99"):
        ArtifactStore.open(store.folder)


def test_a_full_disk_keeps_nothing_half_written(tmp_path, monkeypatch):
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadArtifact, match="No space left"):
        write_shard(tmp_path, "shard-0.safetensors", [made_up(0)], "float16")
    assert list(tmp_path.iterdir()) == []


def test_an_epoch_visits_every_sample_once(store):
    batches = store.all.epoch(0, 5, seed=1)
    assert sorted(n for batch in batches for n in batch) == list(range(12))
    assert len(batches) == store.all.num_batches(5) == 3


def test_batches_from_a_step_on_are_those_of_the_whole_run(store):
    def ids(start: int, count: int) -> list[list[str]]:
        batches = store.all.batches(5, seed=1, start=start)
        return [[a.id for a in next(batches)] for _ in range(count)]

    torch.manual_seed(123)  # must not matter
    assert ids(0, 9)[4:] == ids(4, 5)


def test_epochs_and_seeds_have_orders_of_their_own(store):
    orders = [store.all.epoch(e, 5, s) for e, s in ((0, 0), (1, 0), (0, 1))]
    assert orders[0] != orders[1] and orders[0] != orders[2]


def test_a_batch_holds_samples_of_similar_length(tmp_path):
    store = made_up_store(tmp_path / "s", [made_up(n, length=5 + n % 40) for n in range(80)], 40)
    spreads = []
    for batch in store.all.epoch(0, 8, seed=0):
        lengths = [store.rows[n].length for n in batch]
        spreads.append(max(lengths) - min(lengths))
    assert sum(spreads) / len(spreads) < 8


def test_a_split_by_share_depends_on_the_id_alone(store):
    train, valid = store.split(0.4)
    assert sorted(train.numbers + valid.numbers) == list(range(12))
    assert len(valid) > 0 and len(train) > 0
    again = store.split(0.4)[1]
    assert [a.id for a in again] == [a.id for a in valid]


def test_a_split_by_ids_takes_those_and_refuses_unknown_ones(store):
    train, valid = store.split(["s3", "s9"])
    assert [a.id for a in valid] == ["s3", "s9"] and len(train) == 10
    with pytest.raises(BadArtifact, match="s99"):
        store.split(["s99"])
