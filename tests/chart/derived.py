"""The parts of values.schema.json that others decide: a policy's spec (the CRD) and the exporter's configuration file.

`python -m tests.chart.derived` writes them anew; a test fails while they differ.
"""

from __future__ import annotations

import json
import re
from typing import Any
from unittest import mock

import yaml

from mx_exporter import cli, config
from mx_exporter.documents import Section
from tests.chart.helm import CHART

SCHEMA = CHART / "values.schema.json"
Schema = dict[str, Any]


def policy_spec() -> Schema:
    """The CRD's schema of a spec, strict: unknown fields are refused, and what its CEL rules say of one text or number.

    What they say of lengths of time and of several fields together is the API server's to refuse.
    """
    (version,) = yaml.safe_load((CHART / "crd" / "sourceloadpolicies.yaml").read_text())["spec"]["versions"]
    made = _strict(version["schema"]["openAPIV3Schema"]["properties"]["spec"])
    for place, field in (("server", "address"), ("prometheus", "url")):
        # Empty in values.yaml, where it means "none yet".
        text = made["properties"][place]["properties"][field]
        del text["minLength"]
        text["pattern"] = f"^$|{text['pattern']}"
    return made


def _strict(schema: Schema) -> Schema:
    made: Schema = {}
    for key, value in schema.items():
        if key == "properties":
            made[key] = {name: _strict(inner) for name, inner in value.items()}
        elif key in ("items", "additionalProperties"):
            made[key] = _strict(value) if isinstance(value, dict) else value
        elif key not in ("description", "default") and not key.startswith("x-kubernetes-"):
            made[key] = value
    if "properties" in made:
        made["additionalProperties"] = False
    for rule in schema.get("x-kubernetes-validations", ()):
        _add_rule(made, rule["rule"])
    return made


def _add_rule(made: Schema, rule: str) -> None:
    """A CEL rule in JSON Schema's words, for the three kinds that have some."""
    if least := re.fullmatch(r"self >= ([\d.e+-]+)", rule):
        made["minimum"] = float(least[1])
    elif pair := re.fullmatch(r"has\(self\.(\w+)\) == has\(self\.(\w+)\)", rule):
        made["dependencies"] = {pair[1]: [pair[2]], pair[2]: [pair[1]]}
    elif text := re.fullmatch(r"!has\(self\.(\w+)\) \|\| self\.\1\.matches\(r?'(.*)'\)", rule):
        made["properties"][text[1]]["pattern"] = text[2]


class _Recorder(Section):
    """An empty document that remembers what the exporter looks for in it."""

    def __init__(self, source: str, path: str, value: object) -> None:
        super().__init__(source, path, value)
        self.seen: Schema = {}
        self.free = False

    def take(self, key: str, kind: type[Any], default: Any) -> Any:
        self.seen[key] = {str: {"type": "string"}, int: {"type": "integer"}, bool: {"type": "boolean"}}.get(
            kind, {"type": "object", "additionalProperties": {"type": "string"}}
        )
        return default

    def number(self, key: str) -> float | None:
        self.seen[key] = {"type": "number"}
        return None

    def take_scalar(self, key: str) -> str | int | float | None:
        self.seen[key] = {"type": ["string", "number"]}
        return None

    def section(self, key: str) -> Section | None:
        self.seen[key] = inner = _Recorder(key, key, {})
        return inner

    def keys(self) -> tuple[str, ...]:
        self.free = True
        return ()

    def schema(self) -> Schema:
        if self.free:
            return {"type": "object", "additionalProperties": {"type": "number"}}
        inner = {key: value.schema() if isinstance(value, _Recorder) else value for key, value in self.seen.items()}
        return {"type": "object", "additionalProperties": False, "properties": inner}


def exporter_config() -> Schema:
    """What the exporter looks for in its file, without what the chart says by variables, which go before the file."""
    asked: list[_Recorder] = []

    class _Documents(_Recorder):
        @classmethod
        def document(cls, text: str, source: str) -> Section:
            asked.append(_Recorder(source, "", {}))
            return asked[0]

    with mock.patch.object(config, "Section", _Documents):
        config.settings(cli.parser().parse_args([]), {})
    made = asked[0].schema()
    ours = set(re.findall(r"^(MX_EXPORTER_\w+):", (CHART / "templates/exporter/_settings.tpl").read_text(), re.M))
    for option in config.OPTIONS:
        if option.variable in ours:
            del made["properties"][option.key]
    return made


def written(schema: Schema) -> Schema:
    """The chart's schema with both parts as they are now."""
    properties = schema["properties"]
    properties["policy"]["properties"]["spec"] = policy_spec()
    properties["exporter"]["properties"]["config"] = exporter_config()
    return schema


def main() -> None:
    """Write them."""
    SCHEMA.write_text(json.dumps(written(json.loads(SCHEMA.read_text())), indent=2) + "\n")


if __name__ == "__main__":
    main()
