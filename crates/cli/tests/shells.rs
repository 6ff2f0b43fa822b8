//! Completion in real shells: keys are typed into a pseudo terminal, and the shell prints what the line became.
//!
//! `script` of util-linux opens the terminal. After the keys, Ctrl-A and a `printf` before the line make the shell print its words.
#![cfg(target_os = "linux")]

use crate::common;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(30);

struct Shell {
    child: Child,
    keys: ChildStdin,
    output: Receiver<Vec<u8>>,
    lines: usize,
    folder: TempDir,
}

impl Shell {
    /// A shell in a folder of checkpoints, with the completions in it; none where it, or `script`, is not installed.
    fn start(command: &str, register: &str) -> Option<Self> {
        let program = command.split(' ').next().unwrap_or_default();
        let is_present = |program: &&str| Command::new(program).arg("--version").output().is_ok();
        if let Some(missing) = ["script", program].iter().find(|program| !is_present(program)) {
            eprintln!("skipped: {missing} is not installed");
            return None;
        }
        // Not where TMPDIR says: a variable whose value has a space is two words for bash.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
        checkpoints(folder.path());
        let mut child = Command::new("script")
            .args(["-qec", command, "/dev/null"])
            .current_dir(folder.path())
            .env("PATH", path_with_binary())
            .env("HOME", folder.path())
            .env("MODELS", folder.path().join("models"))
            .env("TERM", "xterm")
            .env("LC_ALL", "C.UTF-8")
            .env_remove("COMPLETE")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script is installed");
        let keys = child.stdin.take().expect("a pipe");
        let mut out = child.stdout.take().expect("a pipe");
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = out.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        let mut shell = Self { child, keys, output, lines: 0, folder };
        shell.press(&format!("{register}\n"));
        shell.press("printf 'ready%s\\n' '!'\n");
        shell.wait_for("ready!");
        Some(shell)
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).and_then(|()| self.keys.flush()).expect("the shell runs");
    }

    /// What the terminal showed, up to this text.
    fn wait_for(&mut self, text: &str) -> String {
        let (mut seen, start) = (Vec::new(), Instant::now());
        while start.elapsed() < PATIENCE {
            if let Ok(bytes) = self.output.recv_timeout(Duration::from_millis(100)) {
                seen.extend(bytes);
            }
            let shown = String::from_utf8_lossy(&seen);
            if shown.contains(text) {
                return shown.into_owned();
            }
        }
        panic!("no {text:?} in {:?}", String::from_utf8_lossy(&seen));
    }

    /// The words that the line has after these keys, the last two of which are the same word if no space was put between.
    fn words_after(&mut self, keys: &str) -> Vec<String> {
        self.press(keys);
        std::thread::sleep(Duration::from_millis(400)); // a shell drops what is typed while it draws a list
        self.lines += 1;
        let end = format!("end-{}-", self.lines);
        self.press(&format!("X\x01printf '<%s>\\n' \x05; printf '%s%s\\n' end- {}-\n", self.lines));
        let shown = self.wait_for(&end);
        let words = shown.lines().filter_map(|line| line.rsplit_once('<')?.1.trim_end().strip_suffix('>'));
        words.map(str::to_owned).collect()
    }

    #[track_caller]
    fn becomes(&mut self, keys: &str, words: &[&str]) {
        assert_eq!(self.words_after(keys), words, "after {keys:?}");
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn path_with_binary() -> std::ffi::OsString {
    let folder = Path::new(env!("CARGO_BIN_EXE_max-weights")).parent().expect("a folder");
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths(std::iter::once(folder.to_path_buf()).chain(std::env::split_paths(&path))).expect("a path")
}

fn checkpoints(folder: &Path) {
    let weights: &[(&str, &str, usize, &[usize])] = &[
        ("model.embed_tokens.weight", "F16", 16, &[4, 2]),
        ("model.layers.0.mlp.up_proj.weight", "F16", 16, &[2, 2]),
        ("model.layers.10.mlp.up_proj.weight", "F16", 16, &[2, 2]),
        ("model.norm", "F16", 16, &[2]),
        ("lm_head", "F16", 16, &[2]),
        ("a:b.c", "F16", 16, &[2]),
        ("odd one.w", "F16", 16, &[2]),
    ];
    for name in ["models", "show"] {
        std::fs::create_dir(folder.join(name)).expect("a temporary folder");
    }
    for name in ["tiny.safetensors", "my file.safetensors", "models/inner.safetensors"] {
        common::safetensors(&folder.join(name), "\"format\":\"pt\"", weights);
    }
    std::fs::write(folder.join("broken.gguf"), b"GGUF\x03").expect("a temporary folder");
}

/// What every shell is to do.
fn complete_as_one_wants(shell: &mut Shell) {
    shell.becomes("max-weights vers\t", &["max-weights", "versions", "X"]);
    shell.becomes("max-weights sho\t", &["max-weights", "show", "X"]); // though there is a folder of this name
    shell.becomes("max-weights ls ti\t", &["max-weights", "ls", "tiny.safetensors", "X"]);
    shell.becomes("max-weights ti\t", &["max-weights", "tiny.safetensors", "X"]);
    shell.becomes("max-weights ls mo\t", &["max-weights", "ls", "models/X"]);
    shell.becomes("max-weights ls models/i\t", &["max-weights", "ls", "models/inner.safetensors", "X"]);
    shell.becomes(
        "max-weights ls ~/mod\ti\t",
        &["max-weights", "ls", &format!("{}/models/inner.safetensors", shell.folder.path().display()), "X"],
    );
    shell.becomes("max-weights ls my\t", &["max-weights", "ls", "my file.safetensors", "X"]);
    shell.becomes("max-weights ls --fl\t", &["max-weights", "ls", "--flat", "X"]);
    shell.becomes("max-weights tiny.safetensors --fl\t", &["max-weights", "tiny.safetensors", "--flat", "X"]);
    let show = |words: &[&str]| {
        ["max-weights", "show", "tiny.safetensors"]
            .iter()
            .chain(words)
            .map(|word| (*word).to_owned())
            .collect::<Vec<_>>()
    };
    let mut becomes = |keys: &str, words: &[&str]| {
        let keys = format!("max-weights show tiny.safetensors {keys}");
        assert_eq!(shell.words_after(&keys), show(words), "after {keys:?}");
    };
    becomes("mo\t", &["model.X"]);
    becomes("mo\tem\t", &["model.embed_tokens.X"]);
    becomes("mo\tem\t\t", &["model.embed_tokens.weight", "X"]);
    becomes("model.layers.10.\t\t\t", &["model.layers.10.mlp.up_proj.weight", "X"]);
    becomes("model.n\t", &["model.norm", "X"]);
    becomes("a:b\t\t", &["a:b.c", "X"]);
    becomes("odd\t\t", &["odd one.w", "X"]);
    becomes("fo\t", &["format", "X"]);
    becomes("nothing\t", &["nothingX"]);
    shell.becomes("max-weights show broken.gguf \t", &["max-weights", "show", "broken.gguf", "X"]);
    shell.becomes(
        "max-weights show my\\ file.safetensors lm\t",
        &["max-weights", "show", "my file.safetensors", "lm_head", "X"],
    );
}

#[test]
fn bash_completes_files_and_names() {
    let Some(mut shell) = Shell::start("bash --norc --noprofile -i", "source <(max-weights completions bash)") else {
        return;
    };
    complete_as_one_wants(&mut shell);
    shell.becomes("max-weights ls --format=js\t", &["max-weights", "ls", "--format=jsonX"]);
    shell.becomes("max-weights ls --format=c\t", &["max-weights", "ls", "--format=csv", "X"]);
    shell.becomes(
        "max-weights show \"my file.safetensors\" lm\t",
        &["max-weights", "show", "my file.safetensors", "lm_head", "X"],
    );
    let models = shell.folder.path().join("models/inner.safetensors").display().to_string();
    shell.becomes("max-weights show $MODELS/inner.safetensors lm\t", &["max-weights", "show", &models, "lm_head", "X"]);
    shell
        .becomes("max-weights show ~/models/inner.safetensors lm\t", &["max-weights", "show", &models, "lm_head", "X"]);
}

#[test]
fn zsh_completes_files_and_names() {
    let register = "autoload -U compinit; compinit -u -D; source <(max-weights completions zsh)";
    let Some(mut shell) = Shell::start("zsh -f -i", register) else { return };
    complete_as_one_wants(&mut shell);
}

#[test]
fn fish_completes_files_and_names() {
    let register = "max-weights completions fish | source";
    let Some(mut shell) = Shell::start("fish --no-config -i", register) else { return };
    complete_as_one_wants(&mut shell);
}
