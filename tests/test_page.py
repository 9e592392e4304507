"""The demo's page: self-contained, safe against its own texts, and it does what it says."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from acts import act_of

from varifocal.demo.page import render

BROWSER = next((b for b in map(shutil.which, ("chromium", "chromium-browser")) if b), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--disable-dev-shm-usage", "--hide-scrollbars"]  # fmt: skip

FRAMES = """
<script>  /* virtual time runs on timers and hardly waits for frames */
window.requestAnimationFrame = step => setTimeout(() => step(performance.now()), 16);
window.cancelAnimationFrame = clearTimeout;
</script>
</head>"""

PROBE = """
<script>
"use strict";
const found = {};
const problems = [];
addEventListener("error", event => problems.push(event.message));
addEventListener("securitypolicyviolation", event => problems.push(event.violatedDirective));
const article = document.getElementById("act-0");
const tokens = [...article.querySelectorAll(".token")].filter(t => t.tagName === "BUTTON");
const looks = () => article.querySelectorAll(".picture svg .look").length;
const chosen = () => tokens.findIndex(t => t.getAttribute("aria-pressed") === "true");
const press = key => document.activeElement.dispatchEvent(
  new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
found.tokens = tokens.length;
found.answer = tokens.slice(0, -1).map(t => t.textContent).join("");
found.tabbable = tokens.filter(t => t.tabIndex === 0).length;
found.before = looks();
const guessed = tokens.findIndex(t => t.classList.contains("drafted"));
tokens[guessed].click();
found.clicked = looks();
found.caption = article.querySelector("figcaption").textContent;
const picture = article.querySelector(".picture img").getBoundingClientRect();
const patches = [...article.querySelectorAll(".look")].map(n => n.getBoundingClientRect());
found.inside = patches.every(b => b.width > 1 && b.left >= picture.left - 1
  && b.right <= picture.right + 1 && b.bottom <= picture.bottom + 1);
tokens[guessed].focus();
press("ArrowRight");
found.right = [chosen() - guessed, document.activeElement === tokens[guessed + 1]];
press("Home");
found.home = [chosen(), looks(), article.querySelector("figcaption").textContent];
press("Escape");
found.escaped = [chosen(), looks()];
found.wide = document.documentElement.scrollWidth <= innerWidth;
article.querySelector(".play").click();
const lanes = () => [...article.querySelectorAll(".when")].map(n => n.textContent);
setTimeout(() => { found.underway = lanes(); }, 300);
setTimeout(() => {
  found.race = lanes();
  found.problems = problems;
  const pre = document.createElement("pre");
  pre.id = "probe";
  pre.textContent = JSON.stringify(found);
  document.body.append(pre);
}, 3000);
</script>
</body>"""


def test_page_is_self_contained():
    page = render([act_of("chart")], {"Target": "demo"})
    sources = re.findall(r"(?:src|href)=\"([^\"]*)\"|url\(([^)]*)\)|@import|<link|<iframe", page)
    assert [a or b for a, b in sources if not (a or b).startswith("data:image/png;")] == []
    addresses = set(re.findall(r"https?://[^\s\"'<]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_text_of_an_answer_cannot_become_part_of_the_page():
    nasty = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    page = render([act_of("chart", answer=nasty)], {"Target": nasty})
    assert "<img src=x" not in page
    assert page.count("<script>") == 1


def test_page_says_so_when_a_drafter_does_not_look():
    page = render([act_of("text", looks=False)], {})
    assert "does not look at pictures" in page
    assert "where the drafter looked</li>" not in page


def _probe(page: str, folder: Path, width: int = 1200) -> dict:
    assert BROWSER is not None
    file = folder / "page.html"
    file.write_text(page.replace("</head>", FRAMES).replace("</body>", PROBE))
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}",
               f"--window-size={width},900", "--virtual-time-budget=5000",
               "--dump-dom", file.as_uri()]  # fmt: skip
    dom = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True).stdout
    match = re.search(r'<pre id="probe">(.*?)</pre>', dom, re.DOTALL)
    assert match, dom[-2000:]
    return json.loads(html.unescape(match[1]))


@pytest.mark.skipif(BROWSER is None, reason="no chromium: apt-get install chromium")
def test_choosing_a_token_by_mouse_or_keyboard_shows_where_the_drafter_looked(tmp_path):
    act = act_of("chart")
    found = _probe(render([act, act_of("text")], {"Target": "demo"}), tmp_path)
    assert found["problems"] == []
    assert found["tokens"] == len(act.tokens)
    assert found["answer"] == act.drafted.text
    assert found["tabbable"] == 1
    assert found["before"] == 0
    assert found["clicked"] == 5
    assert found["inside"]
    assert "guessed by the drafter and confirmed" in found["caption"]
    assert found["right"] == [1, True]
    assert found["home"][:2] == [0, 0]
    assert "first one" in found["home"][2]
    assert found["escaped"] == [-1, 0]
    assert found["wide"]
    assert all("token" in text for text in found["underway"])
    assert all(text.startswith("done in") for text in found["race"])
