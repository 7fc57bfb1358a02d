"""What a file that a user names is, by its text alone."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fuzzcompile.model.errors import CaseError
from fuzzcompile.programs.casefiles.case_file import looks_like_path, read_case_file

MODEL = "import torch\nfrom torch import nn\nmodel, x = nn.Linear(4, 4), torch.randn(2, 4)\n"
CASE = "import torch\ndef make():\n    return torch.nn.Linear(2, 2), (torch.ones(2),)\n"


def refusal(path: Path) -> str:
    with pytest.raises(CaseError) as refused:
        read_case_file(path)
    return str(refused.value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (CASE, "case"),
        ("if True:\n    def make():\n        return abs, (1,)\n", "case"),
        ("from cases import *\n", "case"),
        (MODEL + "torch.compile(model)(x)\n", "script"),
        (f"```python\n{MODEL}torch.compile(model)(x)\n```\n", "script"),
        (MODEL + "model.compile()\nmodel(x)\n", "script"),
        (MODEL + "@torch.compile\ndef f(x):\n    return x\nf(x)\n", "script"),
        (MODEL + "from torch import compile as fast\nfast(model)(x)\n", "script"),
        ("from torch import *\ncompile(sin)(ones(3))\n", "script"),
        (MODEL + "import torch._dynamo as d\nd.optimize('inductor')(model)(x)\n", "script"),
        (MODEL + "getattr(torch, 'com' + 'pile')(model)(x)\n", "script"),
        (MODEL + "torch.__dict__['comp' 'ile'](model)(x)\n", "script"),
        (MODEL + "exec('torch.comp' + 'ile(model)(x)')\n", "script"),
        (MODEL + "from transformers import Trainer\nTrainer(model).train()\n", "script"),
        (MODEL + "from .mine import fast\nfast(model)(x)\n", "script"),
        (MODEL + "import importlib\nimportlib.import_module('mine').run()\n", "script"),
        (MODEL + "from os import system\nsystem('python other.py')\n", "script"),
        (MODEL + "torch.hub.load('a/b', 'c')(x)\n", "script"),
    ],
)
def test_a_file_that_may_compile_is_read(tmp_path: Path, text: str, kind: str):
    path = tmp_path / "program.py"
    path.write_text(text)
    assert read_case_file(path).kind == kind


@pytest.mark.parametrize("head", ["", '"""Train."""\n', '"""Train."""\n\nfrom __future__ import annotations\n'])
def test_the_program_of_a_script_sets_its_arguments_itself(tmp_path: Path, head: str):
    path = tmp_path / "train.py"
    path.write_text(
        f"{head}from sys import argv\nprint(argv[1:], __doc__)\ntorch = None\ntorch and torch.compile(abs)\n"
    )
    file = replace(read_case_file(path), arguments=("--name", "it's\n"))
    given = subprocess.run([sys.executable, path, *file.arguments], capture_output=True, text=True, check=True)
    alone = subprocess.run([sys.executable, "-c", file.program], capture_output=True, text=True, check=True)
    assert alone.stdout == given.stdout and "--name" in alone.stdout
    assert replace(file, arguments=()).program == file.source


@pytest.mark.parametrize(
    "text",
    [
        "",
        MODEL + "print(model(x))  # torch.compile(model)(x)\n",
        MODEL + '"""Not with torch.compile."""\nprint("please compile me")\n',
        MODEL + "import re, json\npattern = re.compile('a')\nprint(json.load(open('x')))\n",
        MODEL + "import numpy as np\nprint(getattr(np, 'ones')(3))\n",
        MODEL + "code = compile('1', 'x', 'eval')\n",
        "def make(size):\n    return size\n",
    ],
)
def test_a_file_that_cannot_compile_is_refused_and_says_what_was_looked_for(tmp_path: Path, text: str):
    path = tmp_path / "program.py"
    path.write_text(text)
    said = refusal(path)
    assert "program.py defines no make() and never calls torch.compile" in said and "model.compile()" in said


def test_a_module_beside_the_script_may_compile_whatever_its_name(tmp_path: Path):
    path = tmp_path / "program.py"
    path.write_text("import torch, profile\nprofile.run()\n")
    assert "never calls" in refusal(path)
    (tmp_path / "profile.py").write_text("import torch\nrun = torch.compile(torch.sin)\n")
    assert read_case_file(path).kind == "script"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"import torch\ndef make(:\n", "in line 2: `def make(:`"),
        (b"print 'a'\n", "in line 1: `print 'a'`"),
        (b"x = 1\nreturn x\n", "'return' outside function in line 2: `return x`"),
        (b"\x7fELF\x02\x01\x01\x00\xff\xfe\x00", "is not text"),
        (b"x = '\xe9'\n", "is not text"),
        (b"x = 1\x00", "is not valid Python"),
        (b"(" * 5000 + b")" * 5000, "is not valid Python"),
        (b"# coding: klingon\n", "is not text"),
    ],
)
def test_what_is_no_python_is_refused_with_its_line(tmp_path: Path, data: bytes, says: str):
    path = tmp_path / "program.py"
    path.write_bytes(data)
    said = refusal(path)
    assert said.startswith(str(path)) and says in said and said.count("\n") == 0


def test_what_is_no_file_is_refused(tmp_path: Path):
    assert refusal(tmp_path / "nothing.py") == f"{tmp_path}/nothing.py does not exist."
    assert refusal(tmp_path) == f"{tmp_path} is a folder; name a file in it."
    assert "is not a regular file" in refusal(Path("/dev/zero"))
    assert "cannot be read" in refusal(Path("a\0b.py"))


def test_a_file_is_decoded_as_python_does(tmp_path: Path):
    path = tmp_path / "program.py"
    path.write_bytes(("# coding: latin-1\r\n" + CASE.replace("torch.ones(2)", "'\xe9'")).encode("latin-1"))
    source = read_case_file(path).source
    assert "'\xe9'" in source and "\r" not in source
    path.write_bytes(b"\xef\xbb\xbf" + CASE.encode())
    assert read_case_file(path).source == CASE


@pytest.mark.parametrize(
    ("text", "tests"),
    [
        ("def test_it():\n    torch.compile(f)(x)\n", True),
        ("class TestIt:\n    def test_it(self):\n        torch.compile(f)(x)\n", True),
        ("import pytest\npytestmark = pytest.mark.skipif(False)\n\ndef test_it():\n    pass\n", True),
        ("def test_it():\n    torch.compile(f)(x)\ntest_it()\n", False),
        ("def test_it():\n    torch.compile(f)(x)\nif __name__ == '__main__':\n    test_it()\n", False),
        ("import unittest\nclass A(unittest.TestCase):\n    def test_it(self):\n        torch.compile(f)(x)\n"
         "if __name__ == '__main__':\n    unittest.main()\n", False),
        ("fast = torch.compile(f)\ndef test_it():\n    fast(x)\n", False),
        ("def test_it():\n    torch.compile(f)(x)\nfor n in range(2):\n    test_it()\n", False),
    ],
)  # fmt: skip
def test_a_file_of_tests_is_pytests_unless_it_runs_them(tmp_path: Path, text: str, tests: bool):
    path = tmp_path / "test_it.py"
    path.write_text("import torch\n" + text)
    if tests:
        assert "`assert_compiles_alike`" in refusal(path) and "pytest.main" in refusal(path)
    else:
        assert read_case_file(path).kind == "script"


def test_reading_imports_no_torch(tmp_path: Path):
    path = tmp_path / "case.py"
    path.write_text(CASE)
    program = (
        "import sys; from pathlib import Path; from fuzzcompile.programs.casefiles.case_file import read_case_file;"
        f"read_case_file(Path({str(path)!r})); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_names_of_files_are_told_from_names_of_findings():
    assert looks_like_path("model.py") and looks_like_path("a/b") and looks_like_path("x.ipynb")
    assert not looks_like_path("F12") and not looks_like_path("joint_graph:torch/_inductor/x.py:sfdp")


# -- notebooks -----------------------------------------------------------------------------------------


def notebook(path: Path, *cells: str, **metadata: object) -> Path:
    """A notebook with these code cells, each behind one of text."""
    listed = []
    for cell in cells:
        listed += [{"cell_type": "markdown", "source": ["# x"]}, {"cell_type": "code", "source": cell.splitlines(True)}]
    path.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": listed}))
    return path


def test_the_code_cells_of_a_notebook_are_one_program(tmp_path: Path):
    path = notebook(tmp_path / "n.ipynb", "import torch\nf = torch.sin", "", "x = torch.ones(3)", "torch.compile(f)(x)")
    file = read_case_file(path)
    assert file.kind == "notebook" and file.notes == ()
    assert file.source.splitlines() == ["import torch", "f = torch.sin", "x = torch.ones(3)", "torch.compile(f)(x)"]
    assert [file.place(line) for line in (1, 2, 3, 4)] == [
        "cell 1, line 1", "cell 1, line 2", "cell 2, line 1", "cell 3, line 1",
    ]  # fmt: skip


def test_what_only_a_notebook_understands_is_dropped_and_said(tmp_path: Path):
    cells = (
        "%matplotlib inline\nimport torch\n!pip install torch\nfiles = !ls\ntorch.compile?",
        "%%bash\necho no python ' here",
        "%%time\nx = torch.ones(3)\ntext = '''\n%not a magic\n'''\ny = (7\n  % 4)",
        "if True:\n    %timeit -n 3 torch.compile(torch.sin)(x)",
    )
    file = read_case_file(notebook(tmp_path / "n.ipynb", *cells))
    lines = file.source.splitlines()
    assert lines[:5] == ["pass", "import torch", "pass", "pass", "pass"]
    assert file.place(len(lines)) == "cell 4, line 2" and lines[-1] == "    torch.compile(torch.sin)(x)"
    assert "%not a magic" in lines and "  % 4)" in lines
    assert file.notes[0] == "cell 1: `%matplotlib inline` is dropped"
    assert "cell 2: %%bash is left out" in file.notes and any("run as Python" in note for note in file.notes)


def test_a_notebook_ends_before_a_later_cell_that_is_no_python(tmp_path: Path):
    path = notebook(tmp_path / "n.ipynb", "import torch\ntorch.compile(torch.sin)(torch.ones(3))", "x =\n")
    assert read_case_file(path).notes == (
        "cell 2, line 1 is not valid Python (invalid syntax): the program ends before that cell",
    )
    early = refusal(notebook(path, "import torch", "f = (", "torch.compile(f)"))
    assert early == f"{path}: cell 2, line 1 is not valid Python ('(' was never closed): `f = (`."


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is no notebook (its JSON is broken)"),
        ("[1]", "is no notebook"),
        ('{"a": 1}', "is no notebook (it has no cells)"),
        ('{"cells": []}', "has no code cells"),
        ('{"cells": [{"cell_type": "code", "source": " "}]}', "has no code cells"),
        ('{"cells": [{"cell_type": "code", "source": "x <- 1"}], "metadata": {"kernelspec": {"language": "R"}}}',
         "is a notebook of r"),
        ('{"cells": [{"cell_type": "code", "source": "import torch"}]}', "never calls torch.compile"),
    ],
)  # fmt: skip
def test_what_is_no_notebook_of_a_compiled_program_is_refused(tmp_path: Path, text: str, says: str):
    path = tmp_path / "n.ipynb"
    path.write_text(text)
    assert says in refusal(path)


def test_an_old_notebook_is_read_as_well(tmp_path: Path):
    path = tmp_path / "n.ipynb"
    cell = {"cell_type": "code", "input": "import torch\ntorch.compile(torch.sin)(torch.ones(3))", "language": "python"}
    path.write_text(json.dumps({"nbformat": 3, "worksheets": [{"cells": [cell]}]}))
    assert read_case_file(path).kind == "notebook"


def test_a_report_names_the_places_of_a_notebook_by_cell(tmp_path: Path):
    file = read_case_file(notebook(tmp_path / "n.ipynb", "import torch", "f = torch.sin\ntorch.compile(f)"))
    report = {"culprit": {"site": "n.ipynb:3 #1"}, "detail": 'File "/x/n.ipynb", line 2, in f', "notes": ["m.py:3"]}
    assert file.locate(report) == {
        "culprit": {"site": "n.ipynb:cell 2, line 2 #1"},
        "detail": 'File "/x/n.ipynb", cell 2, line 1, in f',
        "notes": ["m.py:3"],
    }
