//! `max-weights reshard`: a checkpoint for each rank of tensor parallelism. How a model is divided is in the Python package.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use crate::failure::CommandFailure;
use crate::host::{Host, instead};
use crate::inputs::{dtype, memory};

/// Write a folder for each rank of tensor parallelism.
#[derive(Debug, Args)]
#[command(after_help = "\
OUT/rank-0, OUT/rank-1, ... each hold that rank's part of every weight, as
`load_weights(PATH).load(shard=...)` returns it, and are checkpoints themselves.
This needs Python with max_weights.")]
#[allow(clippy::struct_excessive_bools)] // each is an option that is there or not
pub(crate) struct Reshard {
    /// A file, a folder, an index, or ORG/MODEL[@REVISION] in the local Hugging Face cache.
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    path: PathBuf,
    /// The folder to write.
    #[arg(value_name = "OUT", value_hint = ValueHint::AnyPath)]
    out: PathBuf,
    /// How many ranks there are.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    tp: u32,
    /// Only names that match (*, ?, [ab]); repeatable.
    #[arg(long, value_name = "GLOB")]
    select: Vec<String>,
    /// New names, as for convert: of one weight, with a dot at the end of all that begin so, or with *; or one layout, such as vllm. Repeatable.
    #[arg(long, value_name = "FROM=TO")]
    rename: Vec<String>,
    /// Convert all floats to this dtype.
    #[arg(long, value_name = "DTYPE", value_parser = dtype)]
    dtype: Option<max_weights::DType>,
    /// How the weights are divided: a table of max_weights.sharding; without it, the one for the model.
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
    /// Several files for each rank, each of at most this many bytes.
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    max_shard_size: Option<u64>,
    /// Report what would be written, and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Do not wait until the bytes are on the disk.
    #[arg(long)]
    no_sync: bool,
    /// Read back what was written, and compare it, before it replaces anything.
    #[arg(long)]
    verify: bool,
    /// One JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(options: &Reshard, host: &Host) -> Result<u8, CommandFailure> {
    let mut command = host.module("max_weights._resharding")?;
    command.arg(format!("--tp={}", options.tp));
    for (option, given) in [("select", &options.select), ("rename", &options.rename)] {
        command.args(given.iter().map(|given| format!("--{option}={given}")));
    }
    if let Some(dtype) = options.dtype {
        command.arg(format!("--dtype={}", dtype.name()));
    }
    if let Some(table) = &options.table {
        command.arg(format!("--table={table}"));
    }
    if let Some(most) = options.max_shard_size {
        command.arg(format!("--max-shard-size={most}"));
    }
    let Reshard { dry_run, no_sync, verify, json, .. } = *options;
    for (flag, requested) in [("--dry-run", dry_run), ("--no-sync", no_sync), ("--verify", verify), ("--json", json)] {
        if requested {
            command.arg(flag);
        }
    }
    command.arg("--").arg(&options.path).arg(&options.out);
    instead(&mut command)
}
