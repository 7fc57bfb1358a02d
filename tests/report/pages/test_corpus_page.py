"""``fuzzcompile report``: what matters first, a page for each finding, nothing that could break it or leave it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from earlier_corpora import EARLIER, make_tables
from page_reader import Reader
from report_corpora import MADE, found, reproduced
from triage_reports import CULPRIT, SIGNATURE, output

from fuzzcompile.corpus.models import Related, Replay
from fuzzcompile.corpus.store import Store
from fuzzcompile.corpus.transactions import Mark
from fuzzcompile.front.cli.main import main
from fuzzcompile.report.pages.corpus_page import page_of_corpus

EVIL = "</script><script>alert(1)</script><b>`"


class Rows(HTMLParser):
    """The rows of the list, by the finding's number, and whatever would run or be loaded."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows, self.scripts, self.loaded = dict[str, dict[str, str | None]](), list[dict[str, str | None]](), []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag == "li" and "data-i" in given:
            self.rows[f"F{given['data-name']}"] = given
        if tag == "script":
            self.scripts.append(given)
        self.loaded += [given[key] for key in ("src", "xlink:href") if key in given]
        self.loaded += [given.get("href")] if tag in ("link", "base") else []


def pages_in(page: str) -> list[str]:
    """The findings' own pages, unpacked as the browser does."""
    chunks = re.findall(r'<script type="text/plain" id="chunk\d+"[^>]*>([^<]*)</script>', page)
    return [text for chunk in chunks for text in json.loads(gzip.decompress(base64.b64decode(chunk)))]


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store.open(tmp_path / "corpus.db") as opened:
        yield opened


def page_of(store: Store, summary: dict[str, object] | None = None) -> str:
    return page_of_corpus(store, MADE, summary)


def test_what_is_open_and_worst_comes_first_and_has_its_sentence(store):
    known, worst = found(store, 1), found(store, 2)
    stride = output(finding="stride", detail="eager (2, 1), compiled (1, 2)", view_raises=False)
    layout = found(store, 3, "metadata", evidence={"outputs": [stride]})
    store.mark(known, Mark("known", issue="https://github.com/pytorch/pytorch/issues/123"))
    page = page_of(store)
    assert list(Rows(page).rows) == [worst, layout, known]
    assert "3 findings in corpus.db" in Reader(page).text
    assert "2 are silently wrong, 1 returns other strides." in Reader(page).text
    first = page[page.index("What matters first") : page.index('id="findings"')]
    assert f'href="#{worst}"' in first and f'href="#{layout}"' not in first and f'href="#{known}"' not in first
    assert '<a href="https://github.com/pytorch/pytorch/issues/123" rel="noreferrer">#123</a>' in pages_in(page)[2]


def test_each_finding_has_a_page_with_all_that_is_known_of_it(store):
    name = found(store, 1)
    shown = {"plain": "assert_close(a, b)", "plain_shows": True, "ladder": [
        {"backend": "inductor", "result": "wrong", "says": "AssertionError"}]}  # fmt: skip
    reproduced(store, name, "print('repro')\n", neighbour="print('right')\n", shown=shown)
    store.keep_related(
        name, [Related("https://github.com/o/r/issues/9", "issue", "Alike", "open", 1.0, "addmm")], ["q"]
    )
    for torch, status in (("2.12.0", "failing"), ("2.15.0", "fixed")):
        script = store.best_reproducer(name)
        assert script is not None
        store.add_replay(name, Replay(script.sha256, torch, None, status, (status,), "", 1.0))
    page = page_of(store)
    (own,) = pages_in(page)
    text = Reader(own).text
    for part in (
        "assert_close(a, b)", "print('repro')", "print('right')", "confirmed in a clean process", "AssertionError",
        "Alike issue, open; addmm", "2.12.0 2.15.0 failing fixed", "fuse_attention.py:66", "Largest error", "Xeon",
        "it is fixed in torch 2.15.0",
    ):  # fmt: skip
        assert part in text, part
    assert "1 of the 1 that were run again is fixed in torch 2.15.0." in Reader(page).text
    assert "`" not in text and Reader(own).open == []


def test_whatever_a_finding_holds_is_text(store):
    name = found(store, 1, detail=EVIL, culprit={**CULPRIT, "rewrite": EVIL, "details": {"diff": f"+{EVIL}"}})
    reproduced(store, name, f"# {EVIL}\n", shown={"plain": EVIL, "plain_output": EVIL, "error_log": EVIL})
    store.mark(name, Mark("open", note=EVIL))
    page = page_of(store)
    (own,) = pages_in(page)
    assert "script" not in [tag for tag, _ in Reader(own).tags] and "b" not in [tag for tag, _ in Reader(own).tags]
    assert len(Rows(page).scripts) == 3 and EVIL in Rows(page).rows[name]["data-text"]
    assert Reader(own).text.count("</script><script>alert(1)</script><b>") >= 5


def test_the_file_asks_nobody_and_runs_only_its_own_scripts(store):
    found(store, 1)
    page = page_of(store)
    assert Rows(page).loaded == [] and not re.search(r"@import|url\(", page[: page.index("<script>")])
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    scripts = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert len(hashes) == 2 and all(f"'sha256-{digest}'" in policy.replace("&#39;", "'") for digest in hashes)
    assert policy.startswith("default-src 'none'") and "unsafe-eval" not in policy


def test_no_path_of_this_machine_is_in_it(store):
    path = "/home/someone/models/net.py"
    found(store, 1, detail=f"raised in {path}", culprit={**CULPRIT, "site": f"{path}:3 #1", "source": path})
    page = page_of(store)
    assert "/home/" not in page and "/home/" not in pages_in(page)[0] and "net.py:3" in pages_in(page)[0]
    assert store.location not in page


def test_coverage_and_campaigns_are_counted(store):
    found(store, 1)
    found(store, 2)
    text = Reader(page_of(store)).text
    assert "joint_graph 1 fired" in text and "its time was up" in text
    assert "2 cases judged" in text and "2 campaigns" in text


def test_an_empty_corpus_says_so(store):
    text = Reader(page_of(store)).text
    assert "0 findings in corpus.db" in text and "No findings yet" in text and "no coverage" in text
    assert "No campaign wrote into this corpus" in text and "What matters first" not in text


def test_a_summary_says_what_its_campaign_hit(store):
    old, new = found(store, 1), found(store, 2)
    lines = [{"signature": f"{SIGNATURE}:cause2", "new": True}, {"signature": "gone", "new": False}]
    page = page_of(store, {"cases": 40, "cases_per_minute": 20.0, "findings": lines})
    text = Reader(page).text
    assert "The campaign judged 40 cases (20 a minute), hit 1 finding, 1 of them new." in text
    assert "1 finding of its summary is not in this corpus." in text
    assert Rows(page).rows[new]["data-campaign"] == "hit new" and "data-campaign" not in Rows(page).rows[old]


def test_a_finding_that_got_another_signature_since_counts_as_hit(store):
    name = found(store, 1, signature=SIGNATURE)
    report = {**store.finding(name).report, "signature": f"{SIGNATURE}:softmax(dim)"}
    reproduced(store, name, report=report)
    assert store.finding(name).signature == report["signature"]
    page = page_of(store, {"cases": 1, "findings": [{"signature": SIGNATURE, "new": True}]})
    assert Rows(page).rows[name]["data-campaign"] == "hit new"


def call(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ending:
        main([str(argument) for argument in arguments])
    return int(ending.value.code or 0)


def test_the_command_writes_the_file(store, tmp_path, capsys):
    found(store, 1)
    out = tmp_path / "report.html"
    assert call("report", "--out", out, "--corpus", store.location) == 0
    assert out.read_text(encoding="utf-8").startswith("<!DOCTYPE html>") and "1 finding" in capsys.readouterr().err


def test_the_command_needs_no_torch(store, tmp_path):
    program = (
        "import sys; from fuzzcompile.front.cli import main\ntry: main(sys.argv[1:])\nfinally: "
        "print('torch' in sys.modules)"
    )
    arguments = ["report", "--out", str(tmp_path / "r.html"), "--corpus", store.location]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("content", "said"), [(None, "Cannot read"), ("{", "holds no JSON"), ("[]", "no summary"), ("{}", "no summary")]
)
def test_what_is_no_summary_is_refused_in_one_sentence(store, tmp_path, capsys, content, said):
    summary = tmp_path / "summary.json"
    if content is not None:
        summary.write_text(content, encoding="utf-8")
    arguments = ("--out", tmp_path / "r.html", "--corpus", store.location, "--summary", summary)
    assert call("report", *arguments) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and not (tmp_path / "r.html").exists()


def test_a_missing_corpus_and_a_folder_that_cannot_be_written_are_said(store, tmp_path, capsys):
    assert call("report", "--out", tmp_path / "r.html", "--corpus", tmp_path / "none.db") == 3
    assert "There is no corpus" in capsys.readouterr().err
    assert call("report", "--out", tmp_path / "none" / "r.html", "--corpus", store.location) == 2
    assert "Cannot write" in capsys.readouterr().err


def test_a_corpus_of_an_older_schema_is_read(tmp_path, capsys):
    make_tables(tmp_path / "old.db", EARLIER[0])
    assert call("report", "--out", tmp_path / "r.html", "--corpus", tmp_path / "old.db") == 0
    assert "No findings yet" in (tmp_path / "r.html").read_text(encoding="utf-8")
