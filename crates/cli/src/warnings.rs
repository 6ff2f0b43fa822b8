//! Warnings in the output of other commands: findings of the opening, and code that pickles name.

use max_weights::format::pickle::Danger;
use max_weights::{Catalog, Diagnostic, rules};

/// The findings of the opening, and for each file the first name of what runs code or reaches files. Only other programs call it.
pub(crate) fn warnings(catalog: &Catalog) -> Vec<Diagnostic> {
    let mut warnings = catalog.findings().to_vec();
    let mut last = None;
    for (file, global) in catalog.globals().filter(|(_, global)| matches!(global.danger, Danger::RunsCode)) {
        if last.replace(file) == Some(file) {
            continue;
        }
        let cause =
            format!("a pickle names {}, which can run code or reach files; nothing here calls it", global.full_name());
        let fault = Diagnostic::new(rules::CODE_MALICIOUS_GLOBAL, cause).offset(global.offset);
        let fault = fault.help("Do not load it with another program before running `max-weights scan` on it");
        warnings.push(fault.path(catalog.path(file)));
    }
    warnings
}
