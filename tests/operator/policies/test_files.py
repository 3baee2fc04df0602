"""Policies from files: several documents, and what is wrong with a file itself."""

from __future__ import annotations

import pathlib

import pytest
import yaml

from mx_operator.policies import PolicyError, read_policies
from tests.operator.policies.cases import policy, put


def _file(folder: pathlib.Path, text: str) -> pathlib.Path:
    path = folder / "policy.yaml"
    path.write_text(text)
    return path


def _named(name: str, resource: dict[str, object]) -> dict[str, object]:
    return resource | {"metadata": {"name": name}}


def test_every_document_is_read_and_its_warnings_lead_with_its_name(tmp_path: pathlib.Path) -> None:
    documents = [_named("a", policy()), None, _named("b", policy(put("staleAfter", "5s")))]
    policies, warnings = read_policies(_file(tmp_path, yaml.safe_dump_all(documents)))
    assert [read.name for read in policies] == ["a", "b"]
    assert [warning.field for warning in warnings] == ["b spec.staleAfter"]


def test_the_errors_of_all_documents_come_together(tmp_path: pathlib.Path) -> None:
    documents = [_named("a", policy(put("mode", "x"))), {"spec": 1}, _named("b", policy()), _named("b", policy())]
    with pytest.raises(PolicyError) as caught:
        read_policies(_file(tmp_path, yaml.safe_dump_all(documents)))
    fields = [finding.field for finding in caught.value.findings]
    assert fields[0] == "a spec.mode"
    assert "document 2 kind" in fields
    assert fields[-1] == "b metadata.name"
    assert str(caught.value).startswith(str(tmp_path / "policy.yaml"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the file holds no policy"),
        ("---\n---\n", "the file holds no policy"),
        ("a: [", "line 1, column 5: is not YAML"),
        ("a: !!python/object/apply:os.system [id]", "is not YAML"),
    ],
)
def test_a_file_without_a_policy_says_so(tmp_path: pathlib.Path, text: str, says: str) -> None:
    with pytest.raises(PolicyError, match=r"policy\.yaml: ") as caught:
        read_policies(_file(tmp_path, text))
    assert says in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: pathlib.Path) -> None:
    with pytest.raises(PolicyError, match=r"none\.yaml: \(file\): No such file or directory; give the path"):
        read_policies(tmp_path / "none.yaml")


def test_a_file_that_is_no_text(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PolicyError, match="is not UTF-8"):
        read_policies(path)
