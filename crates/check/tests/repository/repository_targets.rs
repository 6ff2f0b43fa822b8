//! Names in configurations that Hydra and its relatives call, and tags of YAML that make objects.

use crate::repository_support::{found, only, rules};
use max_weights::rules::Verdict;
use max_weights_check::repository::{check_program, check_yaml};

/// The rules that a YAML file breaks.
fn of(yaml: &str) -> Vec<&'static str> {
    rules(&[("model_config.yaml", yaml)])
}

#[test]
fn targets_that_run_programs_or_reach_files_are_malicious() {
    for target in [
        "os.system",
        "posix.system",
        "builtins.eval",
        "builtins.exec",
        "eval",
        "subprocess.Popen",
        "shutil.rmtree",
        "importlib.import_module",
        "torch.load",
        "pickle.loads",
        "hydra.utils.get_method",
        "numpy.f2py.os.system",
        "torch.os.system",
        "functools.partial",
        "x.__class__.y",
        "urllib.request.urlopen",
        "pip.main",
        "__import__",
        "sys.exit",
    ] {
        for yaml in [
            format!("model:\n  _target_: {target}\n"),
            format!("a: [{{_target_: '{target}', _args_: [id]}}]\n"),
            format!("---\na: 1\n---\nb: {{\"_target_\": \"{target}\"}}\n"),
            format!("name: &n {target}\nmodel:\n  _target_: *n\n"),
            format!("base: &b {{_target_: {target}}}\nmodel:\n  <<: *b\n"),
            format!("? _target_\n: {target}\n"),
            format!("\"_tar\\x67et_\": {target}\n"),
        ] {
            assert_eq!(of(&yaml), ["repository.target-dangerous"], "{yaml}");
        }
        let json = format!(r#"{{"model": {{"_target_": "{target}"}}}}"#);
        assert_eq!(rules(&[("config.json", &json)]), ["repository.target-dangerous"], "{json}");
    }
    assert_eq!(of("model:\n  class_path: os.system\n"), ["repository.target-dangerous"]);
}

#[test]
fn other_targets_need_trust_and_say_their_line() {
    let finding = only(
        "repository.target",
        &found(&[("model_config.yaml", "a: 1\nmodel:\n  _target_: nemo.collections.asr.X\n")]),
    );
    assert_eq!(finding.answer, Verdict::NeedsTrust);
    assert!(finding.message.starts_with("line 3: '_target_' "), "{}", finding.message);
    assert_eq!(finding.evidence, "_target_: nemo.collections.asr.X");
    for yaml in [
        "_target_: ${evil}\n",
        "model:\n  class_path: my.Model\n  init_args:\n    a: 1\n",
        "model:\n  target: ldm.models.X\n  params:\n    a: 1\n",
        "model:\n  _component_: torchtune.models.llama3\n",
        "flavors:\n  python_function:\n    loader_module: evil.module\n",
    ] {
        assert_eq!(of(yaml), ["repository.target"], "{yaml}");
    }
    assert_eq!(rules(&[("MLmodel", "flavors:\n  python_function:\n    loader_module: evil\n")]), ["repository.target"]);
    assert_eq!(rules(&[("sbert_config.json", r#"{"activation_function": "evil.X"}"#)]), ["repository.target"]);
}

#[test]
fn tags_of_python_are_told_apart() {
    for yaml in [
        "!!python/object/apply:os.system ['id']\n",
        "a: !!python/object/new:subprocess.Popen [id]\n",
        "a: !!python/object/apply:evil.f []\n",
        "a: !!python/name:os.system\n",
        "a: !!python/module:subprocess.x\n",
        "%TAG !p! tag:yaml.org,2002:python/\n---\na: !p!object/apply:os.system [id]\n",
        "a: !<tag:yaml.org,2002:python/object/apply:os.system> [id]\n",
        "a: !!python/object/apply:%6fs.system [id]\n",
        "a: [\n!!python/object/apply:os.system ['id']\n",
    ] {
        assert!(of(yaml).contains(&"repository.yaml-call"), "{yaml}: {:?}", of(yaml));
    }
    for yaml in [
        "a: !!python/object:argparse.Namespace {x: 1}\n",
        "a: !!python/object/apply:pathlib.PosixPath [a, b]\n",
        "a: !!python/name:my.module.f\n",
    ] {
        assert_eq!(of(yaml), ["repository.yaml-object"], "{yaml}");
    }
    assert!(of("a: !!python/tuple [1, 2]\nb: !!python/unicode 'x'\nc: !custom x\n").is_empty());
}

#[test]
fn ordinary_yaml_is_no_finding() {
    let yaml = "
# options of a training
learning_rate: 1.0e-4
dataset: {type: json, path: data/train.json}
target: [q_proj, v_proj]
target_modules: all-linear
optimizer: &o
  name: adamw
  params: {lr: 1}
other: *o
text: |
  _target_: os.system
";
    assert!(found(&[("config.yaml", yaml)]).is_empty(), "{:#?}", found(&[("config.yaml", yaml)]));
}

#[test]
fn yaml_that_is_broken_or_a_bomb_ends_soon() {
    assert_eq!(of("a: [\nb: {{ x }}\n"), ["repository.yaml-unreadable"]);
    assert!(of("a: [\n_target_: os.system\n").contains(&"repository.target-dangerous"));
    let mut bomb = "a0: &a0 [x, x]\n".to_owned();
    for number in 1..40 {
        bomb += &format!("a{number}: &a{number} [*a{0}, *a{0}, *a{0}]\n", number - 1);
    }
    assert!(of(&bomb).is_empty(), "aliases are not expanded");
    assert_eq!(of(&"[".repeat(100_000)), ["repository.yaml-unreadable"]);
    assert!(of(&"- ".repeat(20_000)).contains(&"repository.yaml-unreadable"));
}

/// The rules that a function for members of archives reports.
fn reported(check: impl FnOnce(&mut dyn FnMut(max_weights::Diagnostic))) -> Vec<&'static str> {
    let mut rules = Vec::new();
    check(&mut |finding| rules.push(finding.rule.id));
    rules
}

#[test]
fn members_of_archives_are_looked_at_by_the_same_rules() {
    let target = reported(|report| check_yaml(b"_target_: os.system\n", report));
    assert_eq!(target, ["repository.target-dangerous"]);
    let program = reported(|report| check_program(b"exec('1')", Some("its handler"), report));
    assert_eq!(program, ["repository.program-run"]);
}
