//! The commands; the module of each defines its options. Help, completions, the man page and the documentation are generated from
//! them.

use clap::builder::styling::{AnsiColor, Styles};
use clap::{Parser, Subcommand};

use crate::bench::Bench;
use crate::complete::Completions;
use crate::convert::{ConvertArguments, MergeArguments, SplitArguments};
use crate::delta::DeltaArguments;
use crate::diff::Diff;
use crate::globals::Globals;
use crate::inputs::Color;
use crate::list::Ls;
use crate::manifest::{Bom, ManifestArguments};
use crate::meta::Meta;
use crate::report::ReportArguments;
use crate::reshard::Reshard;
use crate::show::ShowArguments;
use crate::validate::{Explain, ScanArguments, Validate};
use crate::versions::Versions;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Look into checkpoint files: safetensors, GGUF, PyTorch. Nothing in a file is ever executed.
#[derive(Debug, Parser)]
#[command(name = "max-weights", bin_name = "max-weights", version, styles = STYLES, arg_required_else_help = true, max_term_width = 100)]
#[command(
    after_help = "`max-weights FILE` lists it. Exit status: 0 clean, 1 findings, 2 wrong usage, 3 broken or unreadable, 4 needs trust, 5 malicious, 130 interrupted."
)]
pub(crate) struct CommandLine {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Colours: auto, always or never.
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_default_value = true,
        hide_possible_values = true
    )]
    pub(crate) color: Color,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Ls(Ls),
    Show(ShowArguments),
    Globals(Globals),
    Validate(Validate),
    Scan(ScanArguments),
    Explain(Explain),
    Diff(Diff),
    Manifest(ManifestArguments),
    Bom(Bom),
    Report(ReportArguments),
    Convert(ConvertArguments),
    Merge(MergeArguments),
    Split(SplitArguments),
    Reshard(Reshard),
    Delta(DeltaArguments),
    Meta(Meta),
    Bench(Bench),
    Versions(Versions),
    Completions(Completions),
}
