//! Every form of a report, as it comes out of a folder of models, of hostile names, and of far too many findings.
//!
//! `tests/output/` has the forms of the first two. After a change they are written anew, and read:
//!
//! ```sh
//! SNAPSHOTS=overwrite cargo test -p max-weights-check --test main output
//! ```
#![cfg(unix)]

use crate::fixture;
use std::path::PathBuf;

use max_weights_check::Report;
use max_weights_check::output::{Format, Settings, write};
use snapbox::Data;

fn written(report: &Report, format: Format, settings: &Settings) -> String {
    let mut out = Vec::new();
    write(report, format, settings, &mut out).expect("memory takes everything");
    String::from_utf8(out).expect("reports are UTF-8")
}

fn suffix(format: Format) -> &'static str {
    match format {
        Format::Text | Format::Github => "txt",
        Format::Json | Format::Gitlab => "json",
        Format::Junit => "xml",
        Format::Sarif => "sarif",
        Format::Html => "html",
    }
}

fn matches(name: &str, report: &Report, settings: &Settings) {
    for &format in Format::ALL {
        let suffix = suffix(format);
        let middle = if format.name() == suffix { "" } else { &format!(".{}", format.name()) };
        let file = format!("{name}{middle}.{suffix}");
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/output").join(file);
        // The version of the program is no part of the form.
        let text =
            written(report, format, settings).replace(concat!("\"", env!("CARGO_PKG_VERSION"), "\""), "\"0.0.0\"");
        let text = text.replace(concat!("max-weights ", env!("CARGO_PKG_VERSION")), "max-weights 0.0.0");
        snapbox::Assert::new().action_env("SNAPSHOTS").eq(Data::text(text).raw(), Data::read_from(&path, None).raw());
    }
}

#[test]
fn every_form_of_a_report_is_as_it_was() {
    matches("sample", &fixture::sample(), &fixture::settings());
}

#[test]
fn every_form_of_a_report_of_hostile_names_is_as_it_was() {
    matches("hostile", &fixture::hostile(&fixture::HOSTILE), &fixture::settings());
}

#[test]
fn a_report_of_nothing_says_so_in_every_form() {
    matches("empty", &fixture::empty(), &fixture::settings());
}
