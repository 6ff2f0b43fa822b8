//! Failures that tests ask for: the third call of that function, with this result, at once or when its operation is executed.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use crate::result::CUresult;
use crate::state::lock;

/// The failure that a test plans for a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Planned {
    /// It returns this and does nothing.
    Now(CUresult),
    /// It returns success, and what it issues fails with this when it is executed.
    Later(CUresult),
}

#[derive(Default)]
struct Plans {
    calls: HashMap<&'static str, u64>,
    /// Which call, counted from the first of the process.
    planned: HashMap<String, Vec<(u64, Planned)>>,
}

static PLANS: LazyLock<Mutex<Plans>> = LazyLock::new(|| {
    let mut plans = Plans::default();
    match std::env::var("FAKE_CUDA_FAIL").map_or(Ok(Vec::new()), |text| parse(&text)) {
        Ok(rows) => {
            for (name, at, what) in rows {
                plans.planned.entry(name).or_default().push((at, what));
            }
        }
        Err(cause) => {
            // A test that asks for a failure that never comes would pass: better none runs.
            eprintln!("FAKE_CUDA_FAIL: {cause}");
            std::process::abort();
        }
    }
    Mutex::new(plans)
});

/// `cuMemAlloc_v2:3=2,cuMemcpyHtoDAsync_v2@1=700`
fn parse(text: &str) -> Result<Vec<(String, u64, Planned)>, String> {
    text.split(',').filter(|part| !part.trim().is_empty()).map(|part| parse_one(part.trim())).collect()
}

fn parse_one(text: &str) -> Result<(String, u64, Planned), String> {
    let wrong = || format!("{text:?} is not NAME:CALL=RESULT or NAME@CALL=RESULT");
    let (name, rest) = text.split_once([':', '@']).ok_or_else(wrong)?;
    let (at, result) = rest.split_once('=').ok_or_else(wrong)?;
    let result = result.parse().map_err(|_| wrong())?;
    let what = if text.contains('@') { Planned::Later(result) } else { Planned::Now(result) };
    known(name, what)?;
    Ok((name.to_owned(), at.parse().map_err(|_| wrong())?, what))
}

/// Functions that issue what can fail later.
const ISSUING: [&str; 12] = [
    "cuMemcpyHtoD_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoD_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyPeerAsync",
    "cuMemsetD8_v2",
    "cuMemsetD8Async",
    "cuMemAllocAsync",
    "cuLaunchHostFunc",
    "cuLaunchKernel",
];

fn known(name: &str, what: Planned) -> Result<(), String> {
    let functions = crate::entry::functions();
    let can_fail = match what {
        Planned::Now(_) => functions.iter().any(|function| function.name == name),
        Planned::Later(_) => ISSUING.contains(&name),
    };
    if can_fail {
        Ok(())
    } else {
        Err(format!("{name:?} is not a function of this library that can fail so: {what:?}"))
    }
}

/// Counts a call and returns its planned failure.
pub(crate) fn plan(name: &'static str) -> Option<Planned> {
    let mut plans = lock(&PLANS);
    let calls = plans.calls.entry(name).or_default();
    *calls += 1;
    let calls = *calls;
    let planned = plans.planned.get_mut(name)?;
    let place = planned.iter().position(|row| row.0 == calls)?;
    Some(planned.swap_remove(place).1)
}

/// The `nth` call of a function from now on, the next being 1.
pub(crate) fn add(name: &str, nth: u64, what: Planned) -> Result<(), String> {
    known(name, what)?;
    let mut plans = lock(&PLANS);
    let at = plans.calls.get(name).copied().unwrap_or(0) + nth;
    plans.planned.entry(name.to_owned()).or_default().push((at, what));
    Ok(())
}

pub(crate) fn forget() {
    lock(&PLANS).planned.clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_failures_is_read() {
        let rows = parse("cuMemAlloc_v2:3=2, cuMemcpyHtoDAsync_v2@1=700").unwrap();
        assert_eq!(rows[0], ("cuMemAlloc_v2".to_owned(), 3, Planned::Now(2)));
        assert_eq!(rows[1], ("cuMemcpyHtoDAsync_v2".to_owned(), 1, Planned::Later(700)));
    }

    #[test]
    fn a_failure_that_could_never_come_is_refused() {
        for text in ["cuMemAlloc:1=2", "cuInit@1=2", "cuMemAlloc_v2", "cuMemAlloc_v2:x=2", "cuMemAlloc_v2:1=two"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
