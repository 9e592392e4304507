"""The house keeps its plan: imports point downwards, and ARCHITECTURE.md names every file."""

import ast
from pathlib import Path

import varifocal

PACKAGE = Path(varifocal.__file__).parent
ROOT = PACKAGE.parent.parent
FILES = sorted(p for p in PACKAGE.rglob("*.py"))

# Each layer may import the ones before it, and itself.
LAYERS = [
    {"errors"},
    {"images", "sampling", "result", "tree", "fast", "options"},
    {"request"},
    {"chat", "cache", "verify"},
    {"target", "commit", "plan", "processors"},
    {"drafter"},
    {"decode", "batch"},
    {"pictures"},  # the part of demo/ that draws
    {"targets"},
    {"training", "drafters"},
    {"cost", "sparse"},
    {"engine"},
    {"huggingface"},
    {"demo", "evaluation"},
    {"diffusion"},
    {"cli", "__main__"},
]
CATALOGUES = (
    "targets",
    "drafters",
    "evaluation/importers",
    "diffusion/formats",
    "diffusion/gates",
    "diffusion/samplers",
    "diffusion/tasks",
)
PICTURES = {"feed", "sample", "canvas", "words", "asking", "families", "world"}
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def part(path: Path) -> str:
    """The file or folder right below the package."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return "pictures" if parts[0] == "demo" and parts[1] in PICTURES else parts[0]


def imported(path: Path) -> set[str]:
    """Parts of varifocal that a module needs when it is imported; lazy imports do not count."""
    tree = ast.parse(path.read_text())
    found = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = node.module.split(".")
            if names[0] == "varifocal" and len(names) > 1:
                below = names[2:3] or [alias.name for alias in node.names]
                is_drawing = names[1] == "demo" and PICTURES.issuperset(below)
                found.add("pictures" if is_drawing else names[1])
    return found


def test_every_part_has_a_layer():
    parts = {part(p) for p in FILES} - {"__init__"}
    assert parts == set(LEVEL)


def test_imports_point_downwards():
    wrong = []
    for path in FILES:
        own = part(path)
        if own == "__init__":
            continue
        above = [n for n in imported(path) if n != own and LEVEL[n] > LEVEL[own]]
        wrong += [f"{path.relative_to(PACKAGE)} imports {n}" for n in above]
    assert not wrong, wrong


def test_entries_of_a_catalogue_never_import_each_other():
    wrong = []
    for folder in CATALOGUES:
        entries = {p.stem for p in (PACKAGE / folder).glob("*.py") if not p.stem.startswith("_")}
        for path in (PACKAGE / folder).glob("[!_]*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module:
                    last = node.module.removeprefix(f"varifocal.{folder.replace('/', '.')}.")
                    if last != node.module and last in entries:
                        wrong.append(f"{path.name} imports {last}")
    assert not wrong, wrong


def test_the_architecture_page_names_every_core_file_and_entry():
    page = (ROOT / "ARCHITECTURE.md").read_text()
    names = {part(p) for p in FILES} - {"__init__", "pictures"}
    for folder in CATALOGUES:
        names |= {p.stem for p in (PACKAGE / folder).glob("[!_]*.py")}
    missing = sorted(n for n in names if n not in page)
    assert not missing, missing


def test_every_module_says_its_one_job_in_its_first_line():
    silent = []
    for path in FILES:
        first = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]
        if len(first.split()) < 3:
            silent.append(str(path.relative_to(PACKAGE)))
    assert not silent, silent


def test_files_stay_short():
    long = [f"{p.name}: {n}" for p in FILES if (n := len(p.read_text().splitlines())) > 400]
    assert not long, long
