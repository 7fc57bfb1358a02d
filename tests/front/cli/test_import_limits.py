"""`corpus import` reads no file that is too large and follows no link in a folder; what else comes is stored."""

from __future__ import annotations

import contextlib
import http.server
import json
import shutil
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from calling import call, sentence

from fuzzcompile.corpus import imports
from fuzzcompile.corpus.imports import MOST_BYTES, MOST_TOTAL
from fuzzcompile.corpus.store import Store

COMMITTED = Path(__file__).parents[3] / "corpus" / "torch-2.13.0-cpu"
SECRET = "the only line of another file"
LINKED = "is a symbolic link"
LARGE = "has more than 64 MiB"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two exports in `exports`, and a file outside of it."""
    monkeypatch.delenv("FUZZCOMPILE_CORPUS", raising=False)
    monkeypatch.chdir(tmp_path)
    for source, name in (("addmm-drops-alpha", "first"), ("celu-alpha-zero", "second")):
        shutil.copytree(COMMITTED / source, tmp_path / "exports" / name)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text(SECRET)
    return tmp_path


def enlarge(path: Path) -> None:
    """A file of one byte too many, without blocks on the disk."""
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)


def link(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(Path("outside/secret").absolute())


def zip_up(name: str) -> Path:
    with zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in sorted(Path("exports").rglob("*")):
            archive.write(path)
    return Path(name)


@contextlib.contextmanager
def serving(answer: Callable[[http.server.BaseHTTPRequestHandler], object]) -> Iterator[str]:
    """The URL of a server that answers each request in this way."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with contextlib.suppress(ConnectionError):  # the client has read enough
                answer(self)

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def stored() -> list[str]:
    """The programs of the corpus: cases and reproducers."""
    with Store.open(Path("corpus/fuzzcompile.db"), create=False) as store:
        assert store.integrity() == "ok"
        reproducers = [store.best_reproducer(finding.id) for finding in store.findings()]
        return [finding.source for finding in store.findings()] + [each.source for each in reproducers if each]


def check_refused(name: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One of two exports is refused for this reason, and the other is stored."""
    out, err = capsys.readouterr()
    assert "1 new, 0 known, 1 refused." in out
    [refused] = [line for line in err.splitlines() if line.startswith("refused")]
    assert name in refused and why in refused and ": " in refused and "Traceback" not in err
    assert stored() and not any(SECRET in source for source in stored())


@pytest.mark.parametrize("name", ["finding.json", "case.py", "repro.py", "neighbour.py"])
@pytest.mark.parametrize(("spoil", "why"), [(link, LINKED), (enlarge, LARGE)])
def test_an_export_with_such_a_file_in_a_folder_is_refused(
    spoil: Callable[[Path], None], why: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(Path("exports/first") / name)
    assert call("corpus", "import", "exports") == 0
    check_refused("first", f"{name} {why}", capsys)


@pytest.mark.parametrize("name", ["finding.json", "case.py"])
def test_an_export_with_a_large_file_in_a_zip_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    enlarge(Path("exports/first") / name)
    assert call("corpus", "import", zip_up("all.zip")) == 0
    check_refused("first", f"{name} {LARGE}", capsys)


def test_a_folder_behind_a_link_is_not_entered(capsys: pytest.CaptureFixture[str]) -> None:
    Path("exports/first").rename("outside/first")
    Path("exports/first").symlink_to(Path("outside/first").absolute())
    assert call("corpus", "import", "exports") == 0
    assert "1 new, 0 known, 0 refused." in capsys.readouterr().out


def test_a_link_that_the_user_names_is_followed(capsys: pytest.CaptureFixture[str]) -> None:
    Path("link").symlink_to("exports")
    assert call("corpus", "import", "link") == 0
    assert "2 new, 0 known, 0 refused." in capsys.readouterr().out


def test_where_nothing_else_is_there_the_input_is_bad(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("corpus", "import", "exports/second") == 0
    before = stored()
    link(Path("exports/first/case.py"))
    assert call("corpus", "import", "exports/first") == 2
    assert LINKED in capsys.readouterr().err and stored() == before


def test_a_corpus_behind_a_link_in_a_folder_is_not_opened(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("corpus", "import", "exports", "--corpus", "outside/theirs.db") == 0
    Path("theirs").mkdir()
    Path("theirs/fuzzcompile.db").symlink_to(Path("outside/theirs.db").absolute())
    capsys.readouterr()
    assert call("corpus", "import", "theirs") == 2
    assert LINKED in sentence(capsys)
    assert call("corpus", "import", "outside/theirs.db") == 0


def send(handler: http.server.BaseHTTPRequestHandler, size: int | None) -> None:
    """More than may come, whatever the header says of the size."""
    handler.send_response(200)
    if size is not None:
        handler.send_header("Content-Length", str(size))
    handler.end_headers()
    for _ in range(MOST_BYTES // 2**20 + 8):
        handler.wfile.write(bytes(2**20))


@pytest.mark.parametrize("size", [MOST_BYTES + 8 * 2**20, None])
def test_a_download_that_is_too_large_ends_at_the_limit(size: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("corpus", "import", "exports/second") == 0
    before = stored()
    capsys.readouterr()
    with serving(lambda handler: send(handler, size)) as url:
        assert call("corpus", "import", f"{url}/all.zip") == 2
    said = sentence(capsys)
    assert f"{url}/all.zip {LARGE}" in said and "import the file" in said and "\n" not in said
    assert stored() == before


def test_exports_in_a_download_are_held_to_the_same_limit(capsys: pytest.CaptureFixture[str]) -> None:
    enlarge(Path("exports/first/case.py"))
    data = zip_up("all.zip").read_bytes()

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(data)

    assert len(data) < MOST_BYTES
    with serving(answer) as url:
        assert call("corpus", "import", f"{url}/all.zip") == 0
    check_refused("first", f"case.py {LARGE}", capsys)


def add_large_exports(parts: int) -> None:
    """Exports that are as large as one may be, without blocks on the disk."""
    for part in range(parts):
        folder = Path(f"exports/large-{part:02}")
        folder.mkdir()
        for name in ("finding.json", "case.py"):
            with (folder / name).open("wb") as file:
                file.truncate(MOST_BYTES)


def check_nothing_came(source: object, excess: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything of a source is refused in one sentence that names it, and a corpus that is there stays as it is."""
    assert call("corpus", "import", "exports/second") == 0
    before = stored()
    capsys.readouterr()
    assert call("corpus", "import", source) == 2
    said = sentence(capsys)
    assert f"The exports in {source} have more than {excess} together" in said and "several parts" in said
    assert "\n" not in said and stored() == before


def test_a_folder_whose_exports_are_too_large_together_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    add_large_exports(MOST_TOTAL // MOST_BYTES // 2)
    check_nothing_came("exports", "2,048 MiB", capsys)


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "zip"])
def test_exports_with_too_many_files_together_are_refused(
    packed: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = zip_up("all.zip") if packed else "exports"
    monkeypatch.setattr(imports, "MOST_FILES", 5)
    check_nothing_came(source, "5 files", capsys)


def test_other_files_in_a_folder_and_files_that_are_not_read_do_not_count(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        Path(f"exports/notes-{number}").write_text("not of an export")
    enlarge(Path("exports/first/case.py"))
    monkeypatch.setattr(imports, "MOST_FILES", 8)
    monkeypatch.setattr(imports, "MOST_TOTAL", MOST_BYTES)
    assert call("corpus", "import", "exports") == 0
    check_refused("first", f"case.py {LARGE}", capsys)


def test_an_answer_that_is_none_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(lambda handler: handler.wfile.write(b"hello\r\n\r\n")) as url:
        assert call("corpus", "import", f"{url}/all.zip") == 3
    assert "cannot be had" in sentence(capsys)


def test_a_finding_that_is_nested_without_end_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    (Path("exports/first") / "finding.json").write_text("[" * 100_000)
    assert call("corpus", "import", "exports", "--json") == 0
    refused = [line for line in map(json.loads, capsys.readouterr().out.splitlines()) if line["how"] == "refused"]
    assert len(refused) == 1 and "not one that fuzzcompile wrote" in refused[0]["why"]
