//! The program of a TorchScript archive: source text, in which the operators that touch files are looked for.

use max_weights::rules;
use max_weights::{Diagnostic, Result};

use crate::context::{ByteSpan, FileContext};
use crate::words;

/// The longest source text that is looked at.
const MAX_BYTES: u64 = 64 << 20;
/// Operators of PyTorch's own that read or write files.
const FILES: &str = "save load from_file _save _load write_file read_file _from_file";
/// Namespaces of operators that come with PyTorch.
const OWN: &str = "
    prim prims aten quantized quantized_decomposed sparse inductor c10d mkldnn _quantized onednn profiler";

/// Looks for operators in a source text.
pub(super) fn scan(piece: &ByteSpan<'_>, context: &mut FileContext<'_>) -> Result<()> {
    if piece.bytes.len() > MAX_BYTES {
        let message = "the source is longer than the limit";
        context.report(piece, Diagnostic::new(rules::CODE_INCOMPLETE, message));
        return Ok(());
    }
    let source = piece.bytes.part(0, MAX_BYTES as usize)?;
    context.check_cancelled()?;
    for (at, path) in paths(&source) {
        let parts: Vec<&str> = path.split('.').collect();
        let file = match parts[..] {
            ["torch", name] | ["ops", "aten" | "prim", name] => words::has(FILES, name),
            ["ops", space, _] => !words::has(OWN, space) && path.contains("file"),
            ["open" | "eval" | "exec" | "__import__"] => true,
            _ => false,
        };
        if file {
            let message = format!("the program calls {}, which reads or writes files", max_weights::text::escape(path));
            context.report(
                piece,
                Diagnostic::new(rules::CODE_SCRIPT_FILES, message).offset(at as u64).evidence(line(&source, at)),
            );
        }
    }
    Ok(())
}

/// The dotted names that are called, outside texts and comments, and where each begins.
fn paths(source: &[u8]) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while let Some(byte) = source.get(at) {
            let start = at;
            match byte {
                b'#' => at += source.iter().skip(at).take_while(|byte| **byte != b'\n').count().max(1),
                quote @ (b'"' | b'\'') => {
                    at += 1;
                    while let Some(byte) = source.get(at) {
                        at += if *byte == b'\\' { 2 } else { 1 };
                        if byte == quote || *byte == b'\n' {
                            break;
                        }
                    }
                }
                b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                    let is_name = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(**byte, b'_' | b'.');
                    at += source.iter().skip(at).take_while(is_name).count();
                    let called = source.iter().skip(at).find(|byte| **byte != b' ') == Some(&b'(');
                    let path = source.get(start..at).and_then(|path| std::str::from_utf8(path).ok());
                    if let Some(path) = path.filter(|_| called) {
                        return Some((start, path));
                    }
                }
                _ => at += 1,
            }
        }
        None
    })
}

/// The line of a place, made safe to print.
fn line(source: &[u8], at: usize) -> String {
    let start = source.iter().take(at).rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let line: Vec<u8> = source.iter().skip(start).take_while(|byte| **byte != b'\n').copied().take(1000).collect();
    max_weights::text::escape(String::from_utf8_lossy(&line).trim())
}

#[cfg(test)]
mod tests {
    use super::paths;

    #[test]
    fn calls_are_found_outside_of_texts_and_comments() {
        let source = b"def f(self):\n  # torch.save(x)\n  a = \"torch.load(\\\"x\\\")\"\n  torch.save(a, b)\n  ops.aten.from_file (c)\n  torch.load\n";
        let found: Vec<&str> = paths(source).map(|(_, path)| path).collect();
        assert_eq!(found, ["f", "torch.save", "ops.aten.from_file"]);
    }

    #[test]
    fn a_text_without_end_ends() {
        assert_eq!(paths(b"'\\").count(), 0);
        assert_eq!(paths(b"\"abc\nf()").count(), 1);
    }
}
