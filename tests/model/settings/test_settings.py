"""Where a setting's value comes from, and what is said of a wrong one."""

import json
from pathlib import Path

import pytest

from fuzzcompile.front.cli.main import main
from fuzzcompile.front.known_bugs import IgnorePatterns
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.settings import SETTINGS, SettingSource, read_settings


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with no settings, and a folder in it to work in."""
    for known in SETTINGS:
        monkeypatch.delenv(known.variable, raising=False)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep" / "er")
    return tmp_path


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ending:
        main(arguments)
    return int(ending.value.code or 0)


def configure(folder: Path, text: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(f"[tool.fuzzcompile]\n{text}\n")
    return path


def test_the_environment_beats_the_project_and_the_project_the_default(project, monkeypatch):
    configure(project, 'workers = 3\ndevice = "cpu"\nmax_memory = 4\ncorpus = "c/x.db"\nignore = ["a*", "b"]')
    monkeypatch.setenv("FUZZCOMPILE_WORKERS", "5")
    settings = read_settings()
    assert (settings.find_value("workers"), settings.find_source("workers")) == (5, SettingSource.ENVIRONMENT)
    assert (settings.find_value("device"), settings.find_source("device")) == ("cpu", SettingSource.PYPROJECT)
    assert (settings.find_value("timeout"), settings.find_source("timeout")) == (180.0, SettingSource.DEFAULT)
    assert settings.find_value("max-memory") == 4 and settings.find_value("ignore") == ("a*", "b")
    assert settings.find_value("corpus") == project / "c/x.db"
    assert IgnorePatterns.of(("a*", "b")) == IgnorePatterns(("a*", "b"), project)


def test_the_nearest_file_with_the_table_counts(project):
    configure(project, "workers = 3")
    (project / "deep" / "pyproject.toml").write_text('[project]\nname = "part"\n')
    assert read_settings().find_value("workers") == 3
    configure(project / "deep" / "er", "workers = 4")
    assert read_settings().find_value("workers") == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("wokers = 2", "unknown key 'wokers'; did you mean workers?"),
        ("xyz = 2", "unknown key 'xyz'; the keys are corpus, drafts, device"),
        ('workers = "two"', "workers of [tool.fuzzcompile] is 'two'; give a whole number 1 to 256."),
        ("workers = true", "is True; give a whole number"),
        ("timeout = 0", "is 0; give a number of at least 1."),
        ("ignore = 'a'", "give a list of text"),
        ('fail-on = "bad"', "give silent, error, "),
        ("workers = [", "is not valid TOML"),
    ],
)
def test_a_wrong_value_is_refused_in_one_sentence_that_names_the_file(project, capsys, text, said):
    path = configure(project, text)
    assert call("corpus", "list") == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err and str(path) in err and err.count("\n") == 1
    assert call("triage", "--help") == 0
    out, err = capsys.readouterr()
    assert "Usage:" in out and "warning" in err and said in err


def test_a_wrong_variable_is_named(monkeypatch):
    monkeypatch.setenv("FUZZCOMPILE_WORKERS", "many")
    with pytest.raises(UsageError, match="FUZZCOMPILE_WORKERS is 'many'; give a whole number 1 to 256"):
        read_settings()


def test_config_says_what_is_in_force_and_from_where(project, monkeypatch, capsys):
    path = configure(project, 'fail-on = "silent"')
    monkeypatch.setenv("FUZZCOMPILE_DEVICE", "cpu")
    assert call("config", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["file"] == str(path) and set(said["settings"]) == {known.key for known in SETTINGS}
    assert said["settings"]["fail-on"]["value"] == "silent" and said["settings"]["fail-on"]["source"] == "pyproject"
    assert said["settings"]["device"]["source"] == "environment" and said["settings"]["timeout"]["source"] == "default"
    assert call("config") == 0
    text = capsys.readouterr().out
    assert "FUZZCOMPILE_MAX_MEMORY" in text and str(path) in text


def test_each_variable_stands_in_the_help(capsys):
    for command in ("triage", "run"):
        assert call(command, "--help-all") == 0
    text = "".join(capsys.readouterr().out.split())
    assert not [known.variable for known in SETTINGS if known.variable not in text]


def test_a_value_from_the_project_reaches_the_command_and_the_command_line_beats_it(project, capsys):
    configure(project, 'target = "cuda:sm_90"\ndevice = "cuda"')
    (project / "deep/er/case.py").write_text("def make(): ...")
    assert call("triage", "case.py") == 2
    assert "--target cuda:sm_90" in capsys.readouterr().err
    assert call("triage", "case.py", "--target", "cuda:sm_80") == 2
    assert "--target cuda:sm_80" in capsys.readouterr().err


def test_what_is_ignored(project):
    ignored = IgnorePatterns(("slow/*", "drafts", "_sfdp*", "joint_graph:torch/a.py", "codegen:*:tan"), project)
    files = ["slow/a.py", "drafts/deep/b.py", "c.py", "deep/slow/a.py"]
    assert [ignored.ignores_file(project / name) for name in files] == [True, True, False, False]
    assert ignored.ignores_bug("joint_graph:torch/a.py:sfdp", None) and ignored.ignores_bug("codegen:x.py:tan", None)
    assert ignored.ignores_bug(None, {"rewrite": "_sfdp_pattern_3"}) and not ignored.ignores_bug(
        "joint_graph:torch/a.pyx:y", None
    )
