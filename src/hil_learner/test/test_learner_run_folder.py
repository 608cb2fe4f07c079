"""Run folders: created, continued, and refused where they do not fit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from hil_learner.run_folder import RunFolder, RunFolderError, RunIdentity, new_run_id

IDENTITY = RunIdentity("run-1", "reach", "a" * 64)


def test_a_new_folder_has_its_configuration(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path / "runs", IDENTITY, {"utd": 1.0}, resume=True)
    content = yaml.safe_load(folder.config.read_text())
    assert (content["run_id"], content["fingerprint"]) == ("run-1", "a" * 64)
    assert content["parameters"] == {"utd": 1.0} and not folder.existed
    folder.close()


def test_its_configuration_says_what_changed_when_it_was_continued(tmp_path: Path) -> None:
    RunFolder.open(tmp_path, IDENTITY, {"utd": 1.0, "seed": 0}, resume=True).close()
    folder = RunFolder.open(tmp_path, IDENTITY, {"utd": 2.0, "seed": 0}, resume=True)
    content = yaml.safe_load(folder.config.read_text())
    assert folder.existed and content["parameters"] == {"utd": 1.0, "seed": 0}
    assert [c["changed"] for c in content["continued"]] == [{"utd": 2.0}]
    folder.close()


def test_without_resume_an_existing_folder_is_refused(tmp_path: Path) -> None:
    RunFolder.open(tmp_path, IDENTITY, {}, resume=False).close()
    with pytest.raises(RunFolderError, match="exists: set resume"):
        RunFolder.open(tmp_path, IDENTITY, {}, resume=False)


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (RunIdentity("run-1", "reach", "b" * 64), "fingerprint is 'aaa"),
        (RunIdentity("run-1", "peg_insert", "a" * 64), "task is 'reach'"),
    ],
)
def test_a_folder_of_something_else_is_refused(
    tmp_path: Path, other: RunIdentity, word: str
) -> None:
    RunFolder.open(tmp_path, IDENTITY, {}, resume=True).close()
    with pytest.raises(RunFolderError, match=word):
        RunFolder.open(tmp_path, other, {}, resume=True)


def test_two_learners_do_not_share_a_folder(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path, IDENTITY, {}, resume=True)
    with pytest.raises(RunFolderError, match="in use by another learner"):
        RunFolder.open(tmp_path, IDENTITY, {}, resume=True)
    folder.close()
    RunFolder.open(tmp_path, IDENTITY, {}, resume=True).close()


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 200])
def test_names_that_are_no_folders_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunFolderError, match="run_id"):
        RunFolder.open(tmp_path, RunIdentity(name, "reach", "a"), {}, resume=True)


@pytest.mark.parametrize("content", ["{", "[1, 2]"])
def test_a_damaged_configuration_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "run-1").mkdir()
    (tmp_path / "run-1" / "config.yaml").write_text(content)
    with pytest.raises(RunFolderError, match=re.escape("config.yaml")):
        RunFolder.open(tmp_path, IDENTITY, {}, resume=True)


def test_new_names_differ() -> None:
    assert new_run_id("reach").startswith("reach-") and new_run_id("a") != new_run_id("a")
