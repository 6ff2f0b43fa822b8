//! The man pages and docs/commands.md are what the definitions of the commands say. To write them again after a change:
//!
//! ```sh
//! SNAPSHOTS=overwrite cargo test -p max-weights-cli --test main pages
//! ```

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Arg, Command};
use snapbox::Data;

const HEAD: &str = "\
<!-- Made of crates/cli/src/arguments.rs by `SNAPSHOTS=overwrite cargo test -p max-weights-cli --test main pages`: change it there. -->
# Commands

What `max-weights COMMAND --help` says, of all commands. [The command line](cli.md) shows them at work. The man pages in [man](man) say the same:
`man -l docs/man/max-weights.1`.
";
/// A command, and those below it.
fn all(command: &Command) -> Vec<&Command> {
    let below = command.get_subcommands().filter(|command| !command.is_hide_set());
    std::iter::once(command).chain(below.flat_map(all)).collect()
}

/// Lines that a screen has.
const SCREEN: usize = 42;

/// The definitions with the full names of the command line, and without `help`, which only repeats the others.
fn built() -> Command {
    let mut command = max_weights_cli::command().disable_help_subcommand(true).term_width(80);
    command.build();
    command
}

fn docs() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn assert_is(written: impl Into<Data>, path: &str) {
    snapbox::assert_data_eq!(written.into().raw(), Data::read_from(&docs().join(path), None).raw());
}

#[test]
fn the_page_of_the_commands_is_what_the_definitions_say() {
    let root = built();
    let mut page = HEAD.to_owned();
    for command in all(&root) {
        section(command, &mut page);
    }
    assert_is(page, "commands.md");
}

#[test]
fn the_man_pages_are_what_the_definitions_say() {
    let root = built();
    let mut names = BTreeSet::new();
    for command in all(&root) {
        let source = format!("max-weights {}", root.get_version().unwrap_or_default());
        let man = clap_mangen::Man::new(command.clone()).manual("User Commands").source(source);
        let mut page = Vec::new();
        man.render(&mut page).expect("memory can be written to");
        let name = man.get_filename();
        let mut page = String::from_utf8(page).expect("UTF-8");
        if command.get_after_help().is_some_and(|after| is_in_columns(&after.to_string())) {
            page = page.replace(".SH EXTRA\n", ".SH EXTRA\n.nf\n"); // its lines stay as they are
        }
        assert_is(page, &format!("man/{name}"));
        names.insert(name);
    }
    let present = std::fs::read_dir(docs().join("man")).expect("docs/man is there");
    let present: BTreeSet<String> =
        present.map(|entry| entry.expect("it can be listed").file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(present, names, "a page of a removed command");
}

#[test]
fn the_help_of_every_command_fits_on_a_screen() {
    let root = built();
    let words = |command: &Command| command.get_bin_name().unwrap_or_default().to_owned();
    let names: Vec<String> = all(&root).into_iter().map(words).collect();
    for (name, flag) in names.iter().flat_map(|name| ["--help", "-h"].map(|flag| (name, flag))) {
        let words = name.split(' ').chain([flag]);
        let help = root.clone().try_get_matches_from(words).expect_err("help ends the parse").render().to_string();
        assert!(help.contains("Usage: max-weights"), "{help}");
        assert!(help.lines().count() <= SCREEN, "{} lines:\n{help}", help.lines().count());
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
    }
}

/// A command with its arguments and options.
fn section(command: &Command, page: &mut String) {
    let _ = write!(page, "\n## {}\n", command.get_bin_name().unwrap_or(command.get_name()));
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let aliases: Vec<String> = command.get_visible_aliases().map(|alias| format!("`{alias}`")).collect();
    let aliases = if aliases.is_empty() { String::new() } else { format!(" Also {}.", aliases.join(", ")) };
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").lines().map(str::trim).collect::<Vec<_>>().join("\n");
    let _ = write!(page, "\n{}.{aliases}\n\n```sh\n{usage}\n```\n", text(about.trim_end_matches('.')));
    if command.has_subcommands() {
        page.push('\n');
        for below in command.get_subcommands().filter(|command| !command.is_hide_set()) {
            let about = below.get_about().map(ToString::to_string).unwrap_or_default();
            let (name, whole) = (below.get_name(), below.get_bin_name().unwrap_or_default().replace(' ', "-"));
            let _ = writeln!(page, "- [`{name}`](#{whole}): {}.", text(about.trim_end_matches('.')));
        }
    }
    let shown = |argument: &&Arg| !argument.is_hide_set() && argument.get_id() != "help";
    let arguments: Vec<&Arg> = command.get_arguments().filter(shown).collect();
    let own = |argument: &&&Arg| command.has_subcommands() || !argument.is_global_set();
    let mut headings: Vec<Option<&str>> = Vec::new();
    for argument in arguments.iter().filter(own) {
        let heading = heading(argument);
        if !headings.contains(&heading) {
            headings.push(heading);
        }
    }
    headings.sort_by_key(Option::is_some); // those of no heading first, as in the help
    for requested in headings {
        let _ = write!(page, "\n{}:\n\n", requested.unwrap_or("Arguments and options"));
        for argument in arguments.iter().filter(own).filter(|argument| heading(argument) == requested) {
            let _ = writeln!(page, "- {}", described(argument));
        }
    }
    if let Some(after) = command.get_after_help() {
        let after = after.to_string();
        if is_in_columns(&after) {
            let _ = write!(page, "\n```text\n{}\n```\n", after.trim_end());
        } else {
            let _ = write!(page, "\n{}\n", after.trim_end());
        }
    }
}

/// Whether the lines of a text belong where they are.
fn is_in_columns(text: &str) -> bool {
    text.lines().any(|line| line.contains("  "))
}

fn heading(argument: &Arg) -> Option<&str> {
    argument.get_help_heading()
}

/// An argument or option, as one item of a list.
fn described(argument: &Arg) -> String {
    let mut spelled = Vec::new();
    spelled.extend(argument.get_short().map(|short| format!("-{short}")));
    spelled.extend(argument.get_long().map(|long| format!("--{long}")));
    let names = argument.get_value_names().unwrap_or_default().join(" ");
    let takes = argument.get_action().takes_values();
    let many = argument.get_num_args().is_some_and(|count| count.max_values() > 1);
    let label = match (spelled.is_empty(), takes) {
        (true, _) => format!("{names}{}", if many { "…" } else { "" }),
        (false, true) => format!("{} {names}", spelled.join(", ")),
        (false, false) => spelled.join(", "),
    };
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let mut item = format!("`{label}`: {}.", text(help.trim_end_matches('.')));
    let defaults = argument.get_default_values();
    if takes && !defaults.is_empty() && !argument.is_hide_default_value_set() {
        let _ = write!(item, " Default: {}.", defaults.join(std::ffi::OsStr::new(" ")).to_string_lossy());
    }
    let values = argument.get_possible_values();
    if takes && !values.is_empty() && !argument.is_hide_possible_values_set() {
        let values: Vec<&str> = values.iter().map(clap::builder::PossibleValue::get_name).collect();
        let _ = write!(item, " One of {}.", values.join(", "));
    }
    item
}

/// Text of the definitions in Markdown.
fn text(help: &str) -> String {
    let mut escaped = String::with_capacity(help.len());
    let mut code = false;
    for c in help.chars() {
        code ^= c == '`';
        if !code && "*_[]<>|".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}
