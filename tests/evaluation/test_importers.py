"""Published sets become suites: every form of every layout, splits, and what can be wrong."""

import csv
import json
import random
import sys
from pathlib import Path

import numpy as np
import published
import pytest
from published import FORMS, png, write

from varifocal.errors import BadArtifact, BadOption, VarifocalError
from varifocal.evaluation.importers import _import, _split, find_layout, layout_names
from varifocal.evaluation.importers._import import import_suite
from varifocal.evaluation.importers._split import train_test_split
from varifocal.evaluation.suites import load_suite

NUM = 6  # records of a small set
FEW_TRAIN = 2  # to train on, where the real number is 1,000


def unsplit(name: str) -> str:
    """The --split that leaves out the drawing of a thousand records."""
    return "all" if find_layout(name).split == "drawn" else "test"


@pytest.fixture
def small(monkeypatch):
    """Sets of a few records are divided as those of thousands are."""
    monkeypatch.setattr(_split, "NUM_TRAIN", FEW_TRAIN)


def cases_of(
    folder: Path, name: str, form: int = -1, out: str = "suite", num: int = NUM, **options
):
    """The files of a set are written and imported; the suite by id, and what source.json says."""
    if not (folder / name).exists():
        FORMS[name][form](folder / name, num)
    imported = import_suite(name, folder / name, folder / out, **options)
    said = json.loads((folder / out / "source.json").read_text())
    assert said == imported.source
    return {case.id: case for case in load_suite(folder / out)}, said


def text(case) -> str:
    (message,) = case.request.messages
    return message.parts[-1]


def shown(case) -> list[int]:
    """The heights of the pictures, by which `published.png` tells them apart."""
    return [image.height - 8 for image in case.request.images]


FIRST = {  # a record of each set: id, text, reference, numbers of the pictures
    "chartqa": ("chartqa-test-1", "Which bar is 0?", "0%", [0]),
    "mathvista": ("2", "Find $x_1$\nA. 97\nB. 102", "1.5", [1]),
    "mme": ("code_reasoning/0000", "Is it 0? Please answer yes or no.", "Yes", [0]),
    "mmspec": ("mmspec_1", "What is 1?", None, [1]),
    "mmt_bench": ("1", "Which is 1?\nA. this\nB. that", "B", [1]),
    "ocrbench_v2": ("1", "Read 1.", "word 1", [1]),
    "scienceqa": ("scienceqa-test-1", "Look up.\nWhich star is 0?\nA. Sun\nB. Vega", "A", [0]),
    "seed_bench_2": ("5_1", "How many 1?\nA. One\nB. Two\nC. Three\nD. Four", "B", [1]),
    "textvqa": ("34603", "what is number 1?", "coke", [1]),
}
OTHER_IDS = {  # where another form has other ids
    ("mme", 0): "code_reasoning/0000.png",
    ("scienceqa", 1): "0",
}
EVERY_FORM = [(name, form) for name, forms in FORMS.items() for form in range(len(forms))]


def test_every_form_of_every_layout_is_tried():
    assert layout_names() == list(FORMS)
    assert all(len(find_layout(name).forms) == len(forms) for name, forms in FORMS.items())


@pytest.mark.parametrize(("name", "form"), EVERY_FORM)
def test_every_form_of_every_layout_becomes_a_suite_that_loads(name, form, tmp_path):
    published_form = find_layout(name).forms[form]
    if published_form.suffix == ".parquet":
        pytest.importorskip("pyarrow")
    cases, said = cases_of(tmp_path, name, form, split=unsplit(name))
    id, question, reference, pictures = FIRST[name]
    case = cases[OTHER_IDS.get((name, form), id)]
    if (name, form) == ("mmt_bench", 1):
        pictures = [1, 90 % 8]  # a record of two
    assert text(case) == question
    assert case.reference == reference
    assert shown(case) == pictures
    assert case.request.max_new_tokens == find_layout(name).max_new_tokens
    assert said["form"] == published_form.name
    assert said["records"]["written"] == len(cases) == sum(said["families"].values())
    if name not in ("mme", "mmspec"):
        assert said["families"] == {name: NUM}
    for file in said["files"]:
        (path,) = (
            p for p in (tmp_path / name).rglob(file["name"]) if p.stat().st_size == file["bytes"]
        )
        assert _import.digest(path.read_bytes()) == file["sha256"]


@pytest.mark.parametrize("name", layout_names())
def test_an_answer_that_is_not_published_is_null_and_not_empty(name, tmp_path):
    cases, _ = cases_of(tmp_path, name, split=unsplit(name))
    assert all(case.reference is None or case.reference.strip() for case in cases.values())
    if name in ("mathvista", "mmt_bench", "ocrbench_v2"):
        assert [case.reference for case in cases.values()].count(None) == 1


# Of scikit-learn 1.9.1's train_test_split(np.arange(n), train_size=..., test_size=...,
# random_state=42): the first five and the sum of either part.
PINNED = [
    (10, 3, 4, [7, 2, 9], [8, 1, 5, 0], 18, 14),
    (1001, 1000, 1, [941, 741, 980, 411, 679], [521], 499979, 521),
    (2500, 1000, 1500, [401, 88, 2035, 2459, 131], [1447, 1114, 1064, 2287, 1537], None, None),
    (4500, 1000, 3000, [934, 2419, 4088, 2641, 3252], [2323, 3686, 2974, 2992, 468],
     2258579, 6708998),
    (31325, 1000, 3000, [22292, 14494, 20474, 26479, 30281], [21412, 2900, 6325, 20291, 20063],
     16178030, 46692615),
]  # fmt: skip


@pytest.mark.parametrize("pinned", PINNED, ids=lambda pinned: str(pinned[0]))
def test_the_permutation_is_that_of_scikit_learn(pinned):
    count, train_size, test_size, train_first, test_first, train_sum, test_sum = pinned
    train, test = train_test_split(range(count), train_size=train_size, test_size=test_size)
    assert (train[: len(train_first)], test[: len(test_first)]) == (train_first, test_first)
    assert (len(train), len(test)) == (train_size, test_size)
    assert not set(train) & set(test)
    if train_sum is not None:
        assert (sum(train), sum(test)) == (train_sum, test_sum)


def test_a_drawn_set_has_1000_to_train_on_and_at_most_3000_others():
    for count, num_test in ((1001, 1), (3999, 2999), (4000, 3000), (31325, 3000)):
        train, test = _split.drawn(range(count), "It")
        assert (len(train), len(test), len({*train, *test})) == (1000, num_test, 1000 + num_test)
    with pytest.raises(BadArtifact, match="here are only 1000"):
        _split.drawn(range(1000), "It")
    assert len(_split.drawn_to_train(range(2500))) == 1000
    assert sorted(_split.drawn_to_train(range(7))) == list(range(7))


def test_the_global_generator_neither_decides_a_split_nor_is_moved(tmp_path, small):
    np.random.seed(1)
    before = np.random.get_state()[1].copy()
    first, _ = cases_of(tmp_path, "mathvista")
    assert (np.random.get_state()[1] == before).all()
    np.random.seed(2)
    second, _ = cases_of(tmp_path, "mathvista", out="again")
    assert list(first) == list(second)


def test_the_parts_of_a_drawn_set_are_the_permutation_in_its_order(tmp_path, small):
    test, said = cases_of(tmp_path, "mathvista")
    train, _ = cases_of(tmp_path, "mathvista", out="train", split="train")
    order = np.random.RandomState(42).permutation(NUM)
    ids = [str(n + 1) for n in order]  # pids, in the order of the files
    assert list(test) == ids[: NUM - FEW_TRAIN]
    assert list(train) == ids[NUM - FEW_TRAIN :]
    assert "train_size=2, test_size=4, random_state=42" in said["rule"]
    few, _ = cases_of(tmp_path, "mathvista", out="few", limit=2)
    assert list(few) == ids[:2]


def test_a_picture_of_the_training_part_is_in_no_suite_to_measure_on(tmp_path, small):
    published.math_json(tmp_path / "mathvista", NUM)
    order = [int(n) for n in np.random.RandomState(42).permutation(NUM)]
    tested, trained = order[0], order[-1]
    same = (tmp_path / f"mathvista/images/{trained + 1}.jpg").read_bytes()
    write(tmp_path / f"mathvista/images/{tested + 1}.jpg", same)  # under another name
    cases, said = cases_of(tmp_path, "mathvista")
    assert list(cases) == [str(n + 1) for n in order[1:4]]
    assert said["leakage"] | {"rule": ""} == {
        "rule": "", "records_trained_on": 2, "unread": 0, "pictures": 2, "dropped": 1,
    }  # fmt: skip
    assert said["records"] == {"read": NUM, "chosen": 4, "written": 3}
    assert said["left_out"] == {
        "with a picture of the training part": {"count": 1, "first": [str(tested + 1)]}
    }
    kept = {path.name for path in (tmp_path / "suite/images").iterdir()}
    lines = (tmp_path / "suite/suite.jsonl").read_text().splitlines()
    assert kept == {Path(p).name for line in lines for p in json.loads(line)["images"]}


def test_an_official_test_part_is_compared_with_the_training_part_if_that_is_there(tmp_path):
    published.chart_json(tmp_path / "chartqa", NUM)
    write(tmp_path / "chartqa/test/png/two_col_0.png", png(NUM))  # of the training part
    cases, said = cases_of(tmp_path, "chartqa")
    assert len(cases) == NUM - 1 and said["leakage"]["dropped"] == 1
    alone = import_suite("chartqa", tmp_path / "chartqa/test", tmp_path / "alone")
    assert alone.source["records"]["written"] == NUM
    assert alone.source["leakage"]["rule"].startswith("not checked: the training part is not")
    train, _ = cases_of(tmp_path, "chartqa", out="train", split="train")
    assert sorted(train) == [f"chartqa-train-{n + 1}" for n in range(NUM)]


def test_pictures_of_the_training_part_that_are_not_there_are_counted(tmp_path):
    published.science_json(tmp_path / "scienceqa", NUM)
    (tmp_path / f"scienceqa/images/train/{NUM}/image.png").unlink()
    cases, said = cases_of(tmp_path, "scienceqa")
    assert len(cases) == NUM
    assert (said["leakage"]["pictures"], said["leakage"]["unread"]) == (NUM - 1, 1)
    with pytest.raises(BadArtifact, match="1 records name pictures that are not there"):
        cases_of(tmp_path, "scienceqa", out="train", split="train")


def test_a_set_that_is_only_measured_on_has_no_training_part(tmp_path):
    for name in ("textvqa", "mme", "mmspec"):
        for split in ("train", "all"):
            with pytest.raises(BadOption, match="only measured on, never trained on"):
                cases_of(tmp_path, name, split=split)
        _, said = cases_of(tmp_path, name, out=f"{name}-suite")
        assert said["leakage"]["rule"] == "not checked: nothing of this set is for training"


def test_later_turns_are_counted_and_not_asked(tmp_path):
    cases, said = cases_of(tmp_path, "mmspec")
    assert len(cases) == NUM
    assert said["later_turns_left_out"] == 2 * (NUM // 2)
    assert said["families"] == {"general_vqa": 3, "multi_turn_conversation": 3}


def test_a_limit_counts_records_of_a_family(tmp_path):
    cases, said = cases_of(tmp_path, "mmspec", limit=1)
    assert list(cases) == ["mmspec_0", "mmspec_1"]
    assert said["records"] == {"read": NUM, "chosen": 2, "written": 2}
    with pytest.raises(BadOption, match="limit must be at least 1"):
        cases_of(tmp_path, "mmspec", out="none", limit=0)


def test_records_that_share_an_id_are_told_apart_and_their_picture_is_kept_once(tmp_path):
    cases, _ = cases_of(tmp_path, "mme")
    assert [id for id in cases if "0000" in id] == ["code_reasoning/0000", "code_reasoning/0000-2"]
    assert len(list((tmp_path / "suite/images").iterdir())) == NUM // 2


def test_questions_without_a_picture_or_about_videos_are_left_out_and_counted(tmp_path, small):
    _, said = cases_of(tmp_path, "scienceqa")
    assert said["left_out"]["without a picture"]["count"] == 1
    _, said = cases_of(tmp_path, "seed_bench_2", out="seed")
    assert said["left_out"] == {"of the type Video": {"count": 1, "first": ["19_0"]}}
    assert said["records"] == {"read": NUM + 1, "chosen": NUM - FEW_TRAIN, "written": 4}


def test_damaged_pictures_and_empty_questions_are_left_out_with_the_reason(tmp_path):
    published.ocr_json(tmp_path / "ocrbench_v2", NUM)
    file = tmp_path / "ocrbench_v2/OCRBench_v2.json"
    rows = json.loads(file.read_text())
    rows[2]["question"] = " "
    rows[3]["question"] = "half a character: \ud800"
    write(file, rows)
    write(tmp_path / "ocrbench_v2/EN_part/d/1.png", png(1)[:60])
    write(tmp_path / "ocrbench_v2/EN_part/d/4.png", "version https://git-lfs.github.com/spec/v1")
    cases, said = cases_of(tmp_path, "ocrbench_v2", split="all")
    assert list(cases) == ["0", "5"]
    left_out = said["left_out"]
    assert left_out["without a question"] == {"count": 1, "first": ["2"]}
    first, second = left_out["with a picture that cannot be used"]["first"]
    assert first.startswith("1: wanted a whole PNG") and "git lfs pull" in second
    assert "half a character" in left_out["no request"]["first"][0]
    assert said["records"] == {"read": NUM, "chosen": NUM, "written": 2}


def test_all_pictures_that_are_missing_are_named_at_once(tmp_path):
    published.text_json(tmp_path / "textvqa", NUM)
    for n in (1, 4):
        (tmp_path / f"textvqa/train_images/003a{n}.jpg").unlink()
    with pytest.raises(BadArtifact, match="2 records name pictures that are not there") as refused:
        cases_of(tmp_path, "textvqa")
    assert "003a1.jpg" in str(refused.value) and "003a4.jpg" in str(refused.value)
    assert "--images" in str(refused.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["textvqa"]


@pytest.mark.parametrize("name", ["mmspec", "textvqa", "mathvista", "chartqa", "seed_bench_2"])
def test_pictures_may_lie_elsewhere_in_their_folder_or_in_one_above(name, tmp_path):
    published_at = tmp_path / name
    FORMS[name][-1](published_at, NUM)
    elsewhere = tmp_path / "elsewhere"
    source = published_at / "test" if (published_at / "test").is_dir() else published_at
    folders = [p for p in source.iterdir() if p.is_dir()]
    elsewhere.mkdir()
    for folder in folders:
        folder.rename(elsewhere / folder.name)
    bases = [elsewhere] if len(folders) > 1 else [elsewhere, elsewhere / folders[0].name]
    for n, images in enumerate(bases):
        made = import_suite(
            name, source, tmp_path / f"suite{n}", images=images, split=unsplit(name)
        )
        assert made.source["records"]["written"] == NUM


def test_images_are_refused_where_pictures_are_in_the_files(tmp_path):
    for name in ("mmt_bench", "mme"):
        with pytest.raises(BadOption, match="needs no --images"):
            cases_of(tmp_path, name, images=tmp_path, split=unsplit(name))


@pytest.mark.parametrize("path", ["../secret.png", "/etc/secret.png", "a/../../secret.png"])
def test_a_picture_outside_of_its_folder_is_not_taken(tmp_path, path):
    published.math_json(tmp_path / "mathvista", NUM)
    write(tmp_path / "secret.png", png(0))
    rows = {"1": published.math_rows(1)[0] | {"image": path}, "2": published.math_rows(2)[1]}
    write(tmp_path / "mathvista/testmini.json", rows)
    source = tmp_path / "mathvista/testmini.json"
    said = import_suite("mathvista", source, tmp_path / "suite", split="all").source
    assert said["records"]["written"] == 1
    assert "leads out of its folder" in str(said["left_out"])


def test_the_same_import_again_does_nothing(tmp_path):
    cases_of(tmp_path, "mmspec")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "suite").rglob("*")}
    again = import_suite("mmspec", tmp_path / "mmspec", tmp_path / "suite")
    assert not again.is_new
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "suite").rglob("*")} == before


def test_a_folder_that_holds_anything_else_is_refused_and_stays(tmp_path):
    cases_of(tmp_path, "mmspec")
    source, out = tmp_path / "mmspec", tmp_path / "suite"
    with pytest.raises(BadOption, match="holds another import"):
        import_suite("mmspec", source, out, limit=1)
    (out / "suite.jsonl").write_text("{}\n")
    with pytest.raises(BadOption, match=r"its suite\.jsonl was changed"):
        import_suite("mmspec", source, out)
    write(tmp_path / "mine/notes.txt", "mine")
    with pytest.raises(BadOption, match="holds no import"):
        import_suite("mmspec", source, tmp_path / "mine")
    assert (tmp_path / "mine/notes.txt").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    assert import_suite("mmspec", source, tmp_path / "empty").is_new
    write(source / "test/mmspec.jsonl", (source / "testmini/mmspec.jsonl").read_bytes())
    with pytest.raises(BadOption, match="other files"):
        import_suite("mmspec", source, tmp_path / "empty")


@pytest.mark.parametrize("written", [0, 1, 3])
def test_a_full_disk_leaves_no_half_suite(tmp_path, monkeypatch, written):
    published.mmspec(tmp_path / "mmspec", NUM)
    write_bytes, calls = Path.write_bytes, []

    def fill(path, data):
        calls.append(path)
        if len(calls) > written:
            raise OSError(28, "No space left on device")
        return write_bytes(path, data)

    monkeypatch.setattr(Path, "write_bytes", fill)
    with pytest.raises(BadArtifact, match=r"(?i)no space left.*nothing half-written"):
        import_suite("mmspec", tmp_path / "mmspec", tmp_path / "suite")
    assert [p.name for p in tmp_path.iterdir()] == ["mmspec"]


def test_ctrl_c_leaves_no_half_suite(tmp_path):
    published.mmspec(tmp_path / "mmspec", NUM)

    def interrupt(done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_suite("mmspec", tmp_path / "mmspec", tmp_path / "suite", progress=interrupt)
    assert [p.name for p in tmp_path.iterdir()] == ["mmspec"]


def test_progress_ends_at_all_records_that_are_looked_at(tmp_path, small):
    steps = []
    cases_of(tmp_path, "mathvista", progress=lambda done, total: steps.append((done, total)))
    assert steps == [(n, NUM) for n in range(1, NUM + 1)]


BAD_FILES = [
    ("mathvista", "testmini.json", "[", "cannot be read"),
    ("mathvista", "testmini.json", "", "cannot be read"),
    ("mathvista", "testmini.json", "[" * 100_000, "nested too deeply"),
    ("mathvista", "testmini.json", '{"1": 5}', "record 1 is no object"),
    ("mathvista", "testmini.json", '{"1": {"q": "?"}}', "lacks question, image"),
    ("mathvista", "testmini.json", "version https://git-lfs.github.com/spec/v1\n", "LFS pointer"),
    ("mathvista", "testmini.json", b"\xff\xfe{}", "cannot be read"),
    ("seed_bench_2", "SEED-Bench_v2_level1_2_3.json", "{}", "records under 'questions'"),
    ("ocrbench_v2", "OCRBench_v2.json", "[]", "got no records"),
    ("ocrbench_v2", "OCRBench_v2.json", '{"a": 1}', "wanted a list of records"),
    ("mmspec", "mmspec.jsonl", '{"id": "1"}\n', "lacks turns, image, topic"),
    ("mmspec", "mmspec.jsonl", '\n{"id": \n', "line 2 is not JSON"),
    ("mmt_bench", "MMT-Bench_VAL.tsv", "index\tquestion\n1\tWhat?\n", "wanted the fields"),
    ("mmt_bench", "MMT-Bench_VAL.tsv", "index\tquestion\timage\tA\tB\n1\tW?\n", "line 2 has more"),
    ("mme", "OCR/1.txt", "Is it?\n", "a tab and an answer"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "file", "content", "named"), BAD_FILES)
def test_a_wrong_file_is_refused_with_what_was_wanted_and_what_came(
    tmp_path, name, file, content, named
):
    write(tmp_path / "from" / file, content)
    with pytest.raises(BadArtifact) as refused:
        import_suite(name, tmp_path / "from", tmp_path / "suite", split=unsplit(name))
    assert named in str(refused.value)
    assert Path(file).name in str(refused.value)
    assert not (tmp_path / "suite").exists()


def test_a_missing_column_is_named_with_those_that_came(tmp_path):
    published.mmt_tsv(tmp_path, 2)
    file = tmp_path / "MMT-Bench_ALL_MI.tsv"
    file.write_text(file.read_text().replace("question", "query", 1))
    with pytest.raises(BadArtifact) as refused:
        import_suite("mmt_bench", file, tmp_path / "suite", split="all")
    said = str(refused.value)
    assert "wanted the fields question, image, index, A, B" in said
    assert "got index, query, answer, A, B" in said


def test_files_that_are_not_of_the_set_or_not_there_are_refused(tmp_path):
    write(tmp_path / "notes.md", "?")
    with pytest.raises(BadOption, match=r"no file or folder .*nowhere; --from wants \*\.parquet"):
        import_suite("mathvista", tmp_path / "nowhere", tmp_path / "suite")
    with pytest.raises(BadArtifact, match=r"holds no file of MathVista; wanted \*\.parquet"):
        import_suite("mathvista", tmp_path, tmp_path / "suite")
    with pytest.raises(BadOption, match=r"notes\.md is no file of MathVista"):
        import_suite("mathvista", tmp_path / "notes.md", tmp_path / "suite")
    with pytest.raises(BadOption, match=r"no layout 'vqa'; there are chartqa, .*textvqa"):
        import_suite("vqa", tmp_path, tmp_path / "suite")
    with pytest.raises(BadOption, match="--split must be one of test, train, all"):
        import_suite("mme", tmp_path, tmp_path / "suite", split="dev")


def test_a_file_of_another_split_is_refused(tmp_path):
    published.chart_json(tmp_path / "chartqa", NUM)
    file = tmp_path / "chartqa/train/train_human.json"
    with pytest.raises(BadOption, match="of the split 'train', but --split is test"):
        import_suite("chartqa", file, tmp_path / "suite")
    with pytest.raises(BadArtifact, match="only of train; --split test wants test"):
        (tmp_path / "half").mkdir()
        (tmp_path / "chartqa/train").rename(tmp_path / "half/train")
        import_suite("chartqa", tmp_path / "half", tmp_path / "suite")


def test_files_that_repeat_one_another_must_be_named(tmp_path):
    published.mmt_tsv(tmp_path, 2)
    write(tmp_path / "MMT-Bench_VAL.tsv", (tmp_path / "MMT-Bench_ALL_MI.tsv").read_bytes())
    with pytest.raises(BadOption, match="2 files of MMT-Bench that repeat one another"):
        import_suite("mmt_bench", tmp_path, tmp_path / "suite", split="all")


def test_a_set_too_small_to_be_divided_says_what_to_do(tmp_path):
    with pytest.raises(BadArtifact, match=r"here are only 6.*--split all"):
        cases_of(tmp_path, "mathvista")


def test_python_limits_of_tables_are_as_before(tmp_path):
    before = csv.field_size_limit()
    published.mmt_tsv(tmp_path / "mmt_bench", 2)
    file = tmp_path / "mmt_bench/MMT-Bench_ALL_MI.tsv"
    file.write_text(file.read_text().replace("this", "x" * (before + 1)))
    cases, _ = cases_of(tmp_path, "mmt_bench", split="all")
    assert len(text(cases["0"])) > before
    assert csv.field_size_limit() == before


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    write(tmp_path / "mathvista/data/test-00000-of-00001.parquet", b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(BadOption, match=r"pip install 'varifocal\[suites\]'"):
        cases_of(tmp_path, "mathvista")


def test_a_damaged_parquet_file_and_one_of_another_set_are_refused(tmp_path):
    pytest.importorskip("pyarrow")
    write(tmp_path / "mathvista/data/test-00000-of-00001.parquet", b"PAR1 and no more")
    with pytest.raises(BadArtifact, match=r"parquet cannot be read"):
        cases_of(tmp_path, "mathvista")
    published.ocr_parquet(tmp_path / "other", 2)
    with pytest.raises(BadArtifact, match=r"wanted the fields question, decoded_image.*got id, "):
        import_suite("mathvista", tmp_path / "other", tmp_path / "suite", split="all")


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The same with some bytes changed, cut out or repeated."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(changed))
        end = min(len(changed), start + rng.randint(0, 40))
        piece = rng.choice(
            [b"", b"\0", b"[", b"}", b"null", b"\t", b"\n", bytes(changed[start:end])]
        )
        changed[start:end] = piece * rng.randint(1, 2)
        changed = changed or bytearray(b" ")
    return bytes(changed)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mmspec", "test/mmspec.jsonl"),
        ("mathvista", "testmini.json"),
        ("mmt_bench", "MMT-Bench_ALL_MI.tsv"),
        ("mme", "code_reasoning/0000.txt"),
    ],
)
def test_whatever_a_file_holds_it_is_imported_or_refused_whole(tmp_path, name, file):
    FORMS[name][-1](tmp_path / name, 2)
    path, rng = tmp_path / name / file, random.Random(name)
    good = path.read_bytes()
    for n in range(40):
        write(path, mutated(good, rng))
        out = tmp_path / f"suite{n}"
        try:
            import_suite(name, path, out, split=unsplit(name))
        except VarifocalError:
            assert not out.exists()
        else:
            assert load_suite(out)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]
