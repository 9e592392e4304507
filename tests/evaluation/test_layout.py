"""The report as a browser lays it out: on a screen, on a phone, on paper."""

import html
import json
import re
import shutil
import subprocess

import pytest
from made_up import bench, large, result_of

from varifocal.evaluation.page import page

BROWSER = next((b for b in map(shutil.which, ("chromium", "chromium-browser")) if b), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--disable-dev-shm-usage", "--hide-scrollbars"]  # fmt: skip
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')

PROBE = """
<script>
addEventListener("load", () => {
  const wide = [...document.querySelectorAll(".wide, .large")];
  const inside = box => wide.some(w => w.contains(box));
  const right = box => box.getBoundingClientRect().right;
  const table = document.querySelector(".paper");
  const names = [...table.querySelectorAll("tbody th")];
  const heights = [...table.querySelectorAll("tbody tr")].map(r => r.offsetHeight);
  const labels = [...document.querySelectorAll("figure svg text")].filter(t => !inside(t));
  parent.postMessage(JSON.stringify({
    width: innerWidth,
    page: document.documentElement.scrollWidth,
    stray: [...document.querySelectorAll("body *")].filter(b => !b.closest("svg"))
      .filter(b => !inside(b) && right(b) > innerWidth + 1).map(b => b.tagName + "." + b.className),
    table: [table.scrollWidth, table.parentElement.clientWidth],
    names: names.every(n => n.scrollWidth <= n.clientWidth + 1),
    tallest: Math.max(...heights),
    label: Math.min(...labels.map(t => t.getBoundingClientRect().height)),
  }), "*");
});
</script>
</body>"""

FRAMES = """<!doctype html><pre id="probe"></pre><script>
const found = {}, pre = document.getElementById("probe");
addEventListener("message", event => {
  const said = JSON.parse(event.data);
  found[said.width] = said;
  pre.textContent = JSON.stringify(found);
});
</script>"""


def probed(result, folder, widths=(1280, 390)):
    """What the page says of itself at these widths."""
    assert BROWSER is not None
    text = POLICY.sub("", page(result)).replace("</body>", PROBE)
    (folder / "page.html").write_text(text)
    frames = [f'<iframe src="page.html" style="width:{w}px;height:900px"></iframe>' for w in widths]
    (folder / "frames.html").write_text(FRAMES + "".join(frames))
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", "--window-size=1400,900",
               "--virtual-time-budget=5000", "--dump-dom",
               (folder / "frames.html").as_uri()]  # fmt: skip
    dom = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True).stdout
    match = re.search(r'<pre id="probe">(.*?)</pre>', dom, re.DOTALL)
    assert match, dom[-2000:]
    found = json.loads(html.unescape(match[1]))
    return [found[str(width)] for width in widths]


@pytest.mark.skipif(BROWSER is None, reason="no chromium: apt-get install chromium")
def test_ten_entries_on_nine_families_fit_a_screen_and_a_phone(tmp_path):
    screen, phone = probed(large(), tmp_path)
    for found in (screen, phone):
        assert found["page"] <= found["width"] and found["stray"] == []
        assert found["names"]
        assert found["label"] >= 8  # pixels
    assert screen["table"][0] <= screen["table"][1]  # all of it at once, without scrolling
    assert screen["tallest"] <= 40  # a line for each method


@pytest.mark.skipif(BROWSER is None, reason="no chromium: apt-get install chromium")
def test_long_names_and_small_results_fit_as_well(tmp_path):
    long = "runs/2025-11-a-drafter-with-a-very-long-name:nodes=40:depth=12"
    families = ["a family with a long name of its own", "b"]
    for number, made in enumerate(
        (result_of([("plain", 1.0), (long, 2.0)], families), bench(1, ("plain",)))
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        for found in probed(made, folder):
            assert found["page"] <= found["width"] and found["stray"] == []
