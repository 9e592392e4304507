"""Small files in the published forms of the sets that `suite import` reads."""

import base64
import csv
import json
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from tiny import picture

LETTERS = "ABCD"


def png(seed: int) -> bytes:
    """A picture of its own for every seed, 8 pixels wide and 8 + seed % 8 high."""
    buffer = BytesIO()
    picture(seed, (8, 8 + seed % 8)).save(buffer, "PNG")
    return buffer.getvalue()


def write(path: Path, content: bytes | str | object) -> Path:
    """A file with these bytes, or this text, or JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, bytes | str):
        content = json.dumps(content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def write_tsv(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_parquet(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


def held(seed: int) -> dict[str, Any]:
    """A picture as the hub's parquet files hold it."""
    return {"bytes": png(seed), "path": None}


def mmspec(root: Path, num: int) -> None:
    lines = []
    for n in range(num):
        write(root / f"test/images/mmspec_{n}.jpg", png(n))
        turns = [f"What is {n}?", "And why?", "So?"] if n % 2 else [f"What is {n}?"]
        topic = "multi-turn conversation" if n % 2 else "general vqa"
        lines.append({"id": f"mmspec_{n}", "image": f"mmspec_{n}.jpg", "turns": turns,
                      "category": "default", "topic": topic})  # fmt: skip
    write(root / "test/mmspec.jsonl", "".join(f"{json.dumps(line)}\n" for line in lines))
    write(root / "testmini/mmspec.jsonl", json.dumps(lines[0]) + "\n")


def mmt_rows(num: int) -> list[dict[str, Any]]:
    return [
        {"index": n, "question": f"Which is {n}?", "answer": LETTERS[n % 2] if n else None,
         "A": "this", "B": "that", "C": "", "D": None, "category": "ocr", "l2-category": "x",
         "split": "VAL"}
        for n in range(num)
    ]  # fmt: skip


def mmt_tsv(root: Path, num: int) -> None:
    rows = [row | {"image": base64.b64encode(png(n)).decode()} for n, row in
            enumerate(mmt_rows(num))]  # fmt: skip
    several = [base64.b64encode(png(n)).decode() for n in (1, 90)]
    rows[1]["image"] = str(several)  # as Python writes a list
    write_tsv(root / "MMT-Bench_ALL_MI.tsv", rows)


def mmt_parquet(root: Path, num: int) -> None:
    rows = [row | {"image": [held(n)]} for n, row in enumerate(mmt_rows(num))]
    write_parquet(root / "data/test-00000-of-00001.parquet", rows[1:])
    write_parquet(root / "data/val-00000-of-00001.parquet", rows[:1])


def seed_rows(num: int) -> list[dict[str, Any]]:
    return [
        {"question_id": f"5_{n}", "question": f"How many {n}?", "answer": "B", "choice_a": "One",
         "choice_b": "Two", "choice_c": "Three", "choice_d": "Four", "data_type": "Single Image",
         "data_source": "SEED-Bench v2" if n % 2 else "cc3m", "level": "L1", "version": "v1",
         "question_type_id": 5, "subpart": "Single-Image & Text Comprehension"}
        for n in range(num)
    ]  # fmt: skip


def seed_json(root: Path, num: int) -> None:
    rows = seed_rows(num)
    for n, row in enumerate(rows):
        inside = n % 2 == 1
        name = f"task12/{n}.png" if inside else f"14544_{n}"
        folder = "SEED-Bench-2-image" if inside else "cc3m-image"
        write(root / folder / name, png(n))
        row["data_id"] = [name] if inside else name
    video = seed_rows(1)[0] | {"question_id": "19_0", "data_type": "Video", "data_id": ["a", "b"]}
    content = {"questions": [video, *rows], "question_type": {"Instances Counting": 5}}
    write(root / "SEED-Bench_v2_level1_2_3.json", content)


def seed_parquet(root: Path, num: int) -> None:
    rows = [row | {"image": [held(n)], "data_id": [str(n)]} for n, row in
            enumerate(seed_rows(num))]  # fmt: skip
    write_parquet(root / "data/test-00000-of-00001.parquet", rows)


def science_rows(num: int, first: int = 0) -> list[dict[str, Any]]:
    return [
        {"question": f"Which star is {n}?", "choices": ["Sun", "Vega"], "answer": n % 2,
         "hint": "Look up." if n == first else "", "task": "closed choice", "grade": "grade2",
         "subject": "natural science", "topic": "t", "category": "c", "skill": "s",
         "lecture": "", "solution": ""}
        for n in range(first, first + num)
    ]  # fmt: skip


def science_json(root: Path, num: int) -> None:
    problems: dict[str, Any] = {}
    for n, row in enumerate(science_rows(2 * num)):
        part = "test" if n < num else "train"
        problems[str(n)] = row | {"image": "image.png", "split": part}
        write(root / f"images/{part}/{n}/image.png", png(n))
    bare = {"image": None, "split": "test"}
    problems[str(2 * num)] = science_rows(1)[0] | bare
    write(root / "problems.json", problems)


def science_parquet(root: Path, num: int) -> None:
    for part, first in (("test", 0), ("train", num), ("validation", 2 * num)):
        rows = [row | {"image": held(first + n)} for n, row in
                enumerate(science_rows(num, first))]  # fmt: skip
        rows.append(science_rows(1, first)[0] | {"image": None})
        write_parquet(root / f"data/{part}-00000-of-00001.parquet", rows)


def math_rows(num: int) -> list[dict[str, Any]]:
    return [
        {"pid": str(n + 1), "question": f"Find $x_{n}$", "image": f"images/{n + 1}.jpg",
         "choices": ["97", "102"] if n % 2 else None, "unit": None, "precision": 1.0,
         "answer": f"{n}.5" if n else "", "question_type": "free_form", "answer_type": "float",
         "metadata": {"split": "testmini"}, "query": "Hint: ..."}
        for n in range(num)
    ]  # fmt: skip


def math_json(root: Path, num: int) -> None:
    rows = math_rows(num)
    for n, row in enumerate(rows):
        write(root / row["image"], png(n))
    write(root / "testmini.json", {row["pid"]: row for row in rows[num // 2 :]})
    write(root / "test.json", {row["pid"]: row for row in rows[: num // 2]})
    write(root / "query.json", {row["pid"]: row["query"] for row in rows})


def math_parquet(root: Path, num: int) -> None:
    rows = [row | {"decoded_image": held(n)} for n, row in enumerate(math_rows(num))]
    write_parquet(root / "data/test-00000-of-00002-6b81bd7f7e2065e6.parquet", rows[:2])
    write_parquet(root / "data/test-00001-of-00002-6a611c71596db30f.parquet", rows[2:3])
    write_parquet(root / "data/testmini-00000-of-00001-725687bf7a18d64b.parquet", rows[3:])


def ocr_rows(num: int) -> list[dict[str, Any]]:
    return [
        {"id": n, "dataset_name": "d", "type": "text recognition en", "question": f"Read {n}.",
         "answers": [f"word {n}", "WORD"] if n else []}
        for n in range(num)
    ]  # fmt: skip


def ocr_json(root: Path, num: int) -> None:
    rows = ocr_rows(num)
    del rows[0]["answers"]
    for n, row in enumerate(rows):
        row["image_path"] = f"EN_part/d/{n}.png"
        write(root / row["image_path"], png(n))
    write(root / "OCRBench_v2.json", rows)


def ocr_parquet(root: Path, num: int) -> None:
    rows = [row | {"image": held(n), "bbox": None} for n, row in enumerate(ocr_rows(num))]
    write_parquet(root / "data/test-00000-of-00001.parquet", rows)


def chart_rows(num: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"query": f"Which bar is {n}?", "label": f"{n}%"} for n in range(first, first + num)]


def chart_json(root: Path, num: int) -> None:
    for part, first in (("test", 0), ("train", num)):
        rows = chart_rows(num, first)
        for n, row in enumerate(rows, first):
            row["imgname"] = f"two_col_{n}.png"
            write(root / part / "png" / row["imgname"], png(n))
        write(root / part / f"{part}_human.json", rows[num // 2 :])
        write(root / part / f"{part}_augmented.json", rows[: num // 2])


def chart_parquet(root: Path, num: int) -> None:
    for part, first in (("test", 0), ("train", num)):
        rows = [
            {"image": held(n), "query": row["query"], "label": [row["label"]]}
            for n, row in enumerate(chart_rows(num, first), first)
        ]
        write_parquet(root / f"data/{part}-00000-of-00001.parquet", rows)


def chart_formatted(root: Path, num: int) -> None:
    rows = [{"type": "human_test", "question": row["query"], "answer": row["label"],
             "image": held(n)} for n, row in enumerate(chart_rows(num))]  # fmt: skip
    write_parquet(root / "data/test-00000-of-00001.parquet", rows)


def text_rows(num: int) -> list[dict[str, Any]]:
    return [
        {"question_id": 34602 + n, "question": f"what is number {n}?", "image_id": f"003a{n}",
         "answers": ["nokia", "coke", "coke"], "set_name": "val", "image_width": 8}
        for n in range(num)
    ]  # fmt: skip


def text_json(root: Path, num: int) -> None:
    rows = text_rows(num)
    for n, row in enumerate(rows):
        write(root / f"train_images/{row['image_id']}.jpg", png(n))
    content = {"dataset_type": "val", "dataset_name": "textvqa", "data": rows}
    write(root / "TextVQA_0.5.1_val.json", content)
    bare = [{k: v for k, v in row.items() if k != "answers"} for row in rows]
    write(root / "TextVQA_0.5.1_test.json", {"dataset_type": "test", "data": bare})


def text_parquet(root: Path, num: int) -> None:
    rows = [row | {"image": held(n)} for n, row in enumerate(text_rows(num))]
    write_parquet(root / "data/validation-00000-of-00001.parquet", rows)
    write_parquet(root / "data/train-00000-of-00001.parquet", rows[:1])


def mme_texts(root: Path, num: int) -> None:
    for n in range(num // 2):
        rule = "Please answer yes or no."
        lines = f"Is it {n}? {rule}\tYes\nIs it {n + 9}? {rule}\tNo\n"
        flat = n % 2 == 0
        folder = root / ("code_reasoning" if flat else "artwork")
        write(folder / ("" if flat else "questions_answers_YN") / f"{n:04}.txt", lines)
        write(folder / ("" if flat else "images") / f"{n:04}.{'png' if flat else 'jpg'}", png(n))
    write(root / "eval_tool/LaVIN/OCR.txt", "0001.jpg\tIs it?\tYes\tYes\n")


def mme_parquet(root: Path, num: int) -> None:
    rows = [{"question_id": f"code_reasoning/{n // 2:04}.png", "image": held(n // 2),
             "question": f"Is it {n}? Please answer yes or no.", "answer": "No" if n % 2 else "Yes",
             "category": "code_reasoning"} for n in range(num)]  # fmt: skip
    write_parquet(root / "data/test-00000-of-00004.parquet", rows)


# For every layout its forms in their order: what writes it, given a folder and a count.
FORMS: dict[str, tuple[Callable[[Path, int], None], ...]] = {
    "chartqa": (chart_parquet, chart_formatted, chart_json),
    "mathvista": (math_parquet, math_json),
    "mme": (mme_parquet, mme_texts),
    "mmspec": (mmspec,),
    "mmt_bench": (mmt_parquet, mmt_tsv),
    "ocrbench_v2": (ocr_parquet, ocr_json),
    "scienceqa": (science_parquet, science_json),
    "seed_bench_2": (seed_parquet, seed_json),
    "textvqa": (text_parquet, text_json),
}
