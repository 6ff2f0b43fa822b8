"""The formats of validation reports against their consumers' schemas, and the files for CI systems.

The reports are the snapshots of `cargo test -p max-weights-check --test main output`: of a folder of models, of hostile
names, and without findings.
"""

import html.parser
import json
import os
import re
import shlex
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import xmlschema
import yaml

from command_line import listed, run
from conftest import ROOT, safetensors_bytes

REPORTS = ROOT / "crates" / "check" / "tests" / "output"
NAMES = ["sample", "hostile", "empty"]
# Installed by `make`: a package of PyPI with the schema of OASIS, without its dependencies.
SARIF_SCHEMA = Path(sys.prefix) / "schemas" / "sarif-schema.json"
HOOKS = ROOT / ".pre-commit-hooks.yaml"
ACTION = ROOT / "action.yml"
TEMPLATE = ROOT / "templates" / "max-weights.gitlab-ci.yml"


def report(name: str) -> Any:
    return json.loads((REPORTS / name).read_text())


def vendored(name: str) -> Any:
    """A schema of SchemaStore, from check-jsonschema."""
    folder = resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    return json.loads((folder / name).read_text())


@pytest.mark.parametrize("name", NAMES)
def test_sarif_is_valid_by_the_schema_of_oasis(name: str) -> None:
    assert SARIF_SCHEMA.exists(), f"{SARIF_SCHEMA} is not there: `make test` fetches it"
    schema = json.loads(SARIF_SCHEMA.read_text())
    jsonschema.Draft4Validator(schema).validate(report(f"{name}.sarif"))


@pytest.mark.parametrize("name", NAMES)
def test_junit_is_valid_by_the_common_schema(name: str) -> None:
    schema = xmlschema.XMLSchema(ROOT / "tests" / "python" / "validate" / "junit.xsd")
    schema.validate(REPORTS / f"{name}.junit.xml")


def test_the_schema_of_junit_wants_what_readers_want() -> None:
    schema = xmlschema.XMLSchema(ROOT / "tests" / "python" / "validate" / "junit.xsd")
    valid = (REPORTS / "sample.junit.xml").read_text()
    for wrong in [
        valid.replace(' classname="models/llama/config.json"', ""),
        valid.replace('name="format"', 'name="file"'),
        valid.replace("<failure ", "<skipped/><failure ", 1),
        valid.replace('type="MW-EX-901" ', ""),
    ]:
        assert wrong != valid
        assert not schema.is_valid(wrong)


# GitLab's requirements for code quality reports: app/validators/json_schemas/codeclimate.json, which needs no name of
# the check and accepts any severity. Its documentation requires these, and a path that does not begin with "./".
QUALITY = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["description", "check_name", "fingerprint", "severity", "location"],
        "properties": {
            "description": {"type": "string", "minLength": 1},
            "check_name": {"type": "string", "minLength": 1},
            "fingerprint": {"type": "string", "minLength": 1},
            "severity": {"enum": ["info", "minor", "major", "critical", "blocker"]},
            "location": {
                "type": "object",
                "required": ["path", "lines"],
                "properties": {
                    "path": {"type": "string", "pattern": r"^(?!\./|/).+"},
                    "lines": {"required": ["begin"], "properties": {"begin": {"type": "integer", "minimum": 1}}},
                },
            },
        },
    },
}


@pytest.mark.parametrize("name", NAMES)
def test_reports_for_gitlab_have_what_it_wants(name: str) -> None:
    issues = report(f"{name}.gitlab.json")
    jsonschema.validate(issues, QUALITY)
    assert len({issue["fingerprint"] for issue in issues}) == len(issues)


def test_pickles_are_listed_in_the_words_of_the_hub() -> None:
    files = {file["path"]: file for file in report("sample.json")["files"]}
    torch = files["models/llama/pytorch_model.bin"]
    assert torch["status"] == "unsafe"
    assert [(item["module"], item["name"], item["safety"]) for item in torch["pickleImports"]] == [
        ("torch._utils", "_rebuild_tensor_v2", "innocuous"),
        ("collections", "OrderedDict", "innocuous"),
        ("os", "system", "dangerous"),
    ]
    statuses = {path.rsplit("/", 1)[1]: file["status"] for path, file in files.items()}
    assert statuses["scaler.joblib"] == "caution"
    assert statuses["optimizer.pt"] == "error"
    assert statuses["README.md"] == "unscanned"
    assert statuses["model.safetensors"] == "safe"


class Page(html.parser.HTMLParser):
    """A page as parsed by a browser: the elements, their attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_alone_and_runs_no_script(name: str) -> None:
    page = Page((REPORTS / f"{name}.html").read_text())
    assert "script" not in page.tags()
    for tag, attributes in page.elements:
        assert not {key for key in attributes if key.startswith("on")} | (
            {"src", "href", "srcset"} & set(attributes)
        ), tag
    policies = [attributes["content"] for _, attributes in page.elements if "http-equiv" in attributes]
    assert len(policies) == 1
    assert policies[0] is not None
    assert policies[0].startswith("default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'")


def test_hostile_names_are_text_of_the_page() -> None:
    page = Page((REPORTS / "hostile.html").read_text())
    assert "<script>alert(1)</script><img src=x onerror=alert(1)>" in page.text
    assert "{{ 7 * 7 }}{% raw %}" in page.text


def test_hostile_names_and_metadata_of_a_checkpoint_are_text_of_its_page(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>\"' onerror=alert(1) x={{ 7 * 7 }}</code></style>"
    numbers = np.linspace(-1, 1, 5000)
    weights = {
        hostile: ("F32", [5000], numbers.astype("float32").tobytes()),
        f"{hostile}.0.w": ("F64", [5000], numbers.tobytes()),
        "zero.<b>": ("I32", [5000], bytes(20000)),  # a finding
        "unknown": (hostile, [1], b"a"),
    }
    path = tmp_path / "<img src=x onerror=alert(1)>.safetensors"
    path.write_bytes(safetensors_bytes(weights, {hostile: hostile}))
    template = {"chat_template": f"{hostile}{{{{ self.__class__.__mro__ }}}}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(template))
    done = run("validate", tmp_path, "--level", "content", "--output", f"html={tmp_path / 'page.html'}")
    assert done.status != 0
    text = (tmp_path / "page.html").read_text()
    page = Page(text)
    of_own = set(Page((REPORTS / "empty.html").read_text()).tags()) | set(
        Page((REPORTS / "sample.html").read_text()).tags()
    )
    assert set(page.tags()) <= of_own
    assert "script" not in page.tags()
    for tag, attributes in page.elements:
        assert not {key for key in attributes if key.startswith("on")} | ({"src", "href"} & set(attributes)), tag
    assert "49" not in "".join(part for part in page.text if "alert" in part)
    assert sum("<script>alert(1)</script>" in part for part in page.text) >= 3
    assert any("<img src=x onerror=alert(1)>.safetensors" in part for part in page.text)


def hooks() -> list[dict[str, Any]]:
    loaded = yaml.safe_load(HOOKS.read_text())
    assert isinstance(loaded, list)
    return loaded


def scripts() -> dict[str, str]:
    """The commands that the files run, by their place."""
    found = {f"hook {hook['id']}": hook["entry"] for hook in hooks()}
    for step in yaml.safe_load(ACTION.read_text())["runs"]["steps"]:
        if "run" in step:
            found[f"step {step['name']}"] = step["run"]
    for number, line in enumerate(yaml.safe_load(TEMPLATE.read_text())["max-weights"]["script"]):
        found[f"template {number}"] = line
    return found


def test_the_options_in_the_files_of_ci_systems_are_those_of_the_program() -> None:
    page = listed("validate", "--help")
    options = {option for script in scripts().values() for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", script)}
    options -= {"--quiet", "--disable-pip-version-check"}  # pip's
    assert {"--level", "--output", "--ignore", "--fail-on"} <= options
    assert {option for option in options if not re.search(rf"{option}\b(?!-)", page)} == set()
    formats = {word for script in scripts().values() for word in re.findall(r'--output "?([a-z-]+)', script)}
    assert {"github", "sarif", "gitlab", "junit", "html", "text"} <= formats
    assert {word for word in formats if not re.search(rf"\b{word}\b", page)} == set()


@pytest.mark.parametrize(("path", "schema"), [(ACTION, "github-actions.json"), (TEMPLATE, "gitlab-ci.json")])
def test_the_files_of_ci_systems_are_valid(path: Path, schema: str) -> None:
    loaded = vendored(schema)
    validator = jsonschema.validators.validator_for(loaded)
    validator(loaded).validate(yaml.safe_load(path.read_text()))


def test_hooks_look_at_all_files_of_a_commit_at_once() -> None:
    assert [hook["id"] for hook in hooks()] == ["max-weights-validate", "max-weights-validate-system"]
    for hook in hooks():
        assert {"id", "name", "entry", "language", "files"} <= set(hook)
        assert hook["require_serial"] is True
        assert "format.lfs-pointer" in shlex.split(hook["entry"]), "a pointer is no fault of a commit"
        files = re.compile(hook["files"])
        for name in [
            "model.safetensors", "a/MODEL.GGUF", "pytorch_model.bin", "training_args.bin", "optimizer.pt", "x.pkl.gz",
            "config.json", "m/tokenizer_config.json", "m/model.safetensors.index.json", "chat_template.jinja",
            "model_config.yaml",
        ]:  # fmt: skip
            assert files.search(name), name
        for name in ["README.md", "package.json", "src/main.py", "my_config.json"]:
            assert not files.search(name), name


WRITES_ARGUMENTS = """#!/bin/sh
for argument; do printf "%s\\0" "$argument"; done > "$RUNNER_TEMP/arguments"
exit 4
"""


def ran(tmp_path: Path, program_text: str = WRITES_ARGUMENTS, **inputs: str) -> tuple[int, list[str], str]:
    """The validation step of the action, with a program that records its arguments.

    Returns the exit status, the arguments, and the outputs of the step.
    """
    action = yaml.safe_load(ACTION.read_text())
    step = next(step for step in action["runs"]["steps"] if step.get("id") == "validate")
    values = {name: given["default"] for name, given in action["inputs"].items()} | inputs
    named = {name: re.fullmatch(r"\$\{\{ inputs\.([a-z-]+) \}\}", value) for name, value in step["env"].items()}
    program = tmp_path / "max-weights" / "bin" / "max-weights"
    program.parent.mkdir(parents=True)
    program.write_text(program_text)
    program.chmod(0o755)
    variables = {name: values[match[1]] for name, match in named.items() if match}
    assert set(variables) == set(step["env"])
    environment = {"PATH": os.environ["PATH"], "RUNNER_TEMP": str(tmp_path), "GITHUB_OUTPUT": str(tmp_path / "output")}
    # As GitHub's runner starts it.
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    done = subprocess.run(command, env=environment | variables, cwd=tmp_path, timeout=60)
    return done.returncode, (tmp_path / "arguments").read_text().split("\0")[:-1], (tmp_path / "output").read_text()


def test_the_action_hands_over_its_inputs_and_the_status(tmp_path: Path) -> None:
    paths = "models/a folder\n$(touch owned)\n\n--help"
    status, arguments, output = ran(tmp_path, paths=paths, select="MW-EX", html='a "page".html', **{"fail-on": "error"})
    assert (status, output) == (4, "status=4\n")
    assert arguments == [
        "validate", "--category", "max-weights", "--output", "github", "--output", "sarif=max-weights.sarif",
        "--fail-on", "error", "--select", "MW-EX",
        "--output", 'html=a "page".html', "--", "models/a folder", "$(touch owned)", "--help",
    ]  # fmt: skip
    assert not (tmp_path / "owned").exists()


def test_a_report_is_uploaded_only_where_there_is_one(tmp_path: Path) -> None:
    step = yaml.safe_load(ACTION.read_text())["runs"]["steps"][-1]
    assert "steps.validate.outputs.written == 'true'" in step["if"]
    _, _, output = ran(tmp_path, WRITES_ARGUMENTS.replace("exit 4", "touch max-weights.sarif; exit 5"))
    assert output == "status=5\nwritten=true\n"


@pytest.mark.parametrize(("level", "options"), [("", []), ("content", ["--level", "content"])])
def test_the_template_leaves_to_the_settings_what_is_not_said(tmp_path: Path, level: str, options: list[str]) -> None:
    job = yaml.safe_load(TEMPLATE.read_text())["max-weights"]
    program = tmp_path / "max-weights"
    program.write_text(WRITES_ARGUMENTS)
    program.chmod(0o755)
    variables = job["variables"] | {"MAX_WEIGHTS_LEVEL": level, "MAX_WEIGHTS_PATHS": "models more"}
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "RUNNER_TEMP": str(tmp_path)}
    done = subprocess.run(["sh", "-e", "-c", "\n".join(job["script"])], env=environment | variables, timeout=60)
    assert done.returncode == 4
    arguments = (tmp_path / "arguments").read_text().split("\0")[:-1]
    assert arguments[: 1 + len(options)] == ["validate", *options]
    assert "" not in arguments
    assert "--fail-on" not in arguments
    assert arguments[-3:] == ["--", "models", "more"]


def test_nothing_of_an_input_is_a_part_of_a_script() -> None:
    for step in yaml.safe_load(ACTION.read_text())["runs"]["steps"]:
        assert "${{" not in step.get("run", "")


def test_the_action_has_what_the_guide_recommends(tmp_path: Path) -> None:
    inputs = {
        "expect": "spec.json",
        "junit": "out.xml",
        "config": "ci.toml",
        "arguments": "--timeout=10min\n--jobs\n2\n",
    }
    _, arguments, _ = ran(tmp_path, **inputs)
    assert arguments[7:-2] == [
        "--expect", "spec.json", "--config", "ci.toml", "--output", "junit=out.xml", "--timeout=10min", "--jobs", "2",
    ]  # fmt: skip


def test_the_workflow_of_the_guide_is_whole_and_valid() -> None:
    blocks = re.findall(r"```yaml\n(name:.*?)```", (ROOT / "docs/guides/ci.md").read_text(), re.DOTALL)
    assert len(blocks) == 1
    workflow = yaml.safe_load(blocks[0])
    jsonschema.validate(
        json.loads(json.dumps({"on" if key is True else key: value for key, value in workflow.items()})),
        vendored("github-workflows.json"),
    )
    inputs = yaml.safe_load(ACTION.read_text())["inputs"]
    steps = workflow["jobs"]["validate"]["steps"]
    assert set(steps[-1]["with"]) <= set(inputs)
