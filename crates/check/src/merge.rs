//! The reports of several tasks as the one that a single run would have written.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use max_weights::format::json::read;
use max_weights::rules::Verdict;
use max_weights::workers::stopped_here;
use max_weights::{Error, Result, text};
use serde_json::{Map, Value, json};

use crate::bytes::read_file;
use crate::manifest::{Manifest, bytes_of, hexadecimal, set_hash};
use crate::share::Share;

/// The longest report that is read.
const MAX_BYTES: u64 = 1 << 30;
/// Verdicts, the mildest first. A task that examined nothing does not affect the result.
const ANSWERS: [Verdict; 7] = [
    Verdict::Unknown,
    Verdict::Clean,
    Verdict::Accepted,
    Verdict::Faulty,
    Verdict::Broken,
    Verdict::NeedsTrust,
    Verdict::Malicious,
];
/// The levels of SARIF, the worst first.
const LEVELS: [&str; 3] = ["error", "warning", "note"];

/// The combined result of the reports.
#[derive(Debug)]
pub struct Merged {
    /// The report: a validation as JSON or SARIF, or a manifest.
    pub report: Value,
    /// The answer, where the reports are validations and something in them fails.
    pub failing: Option<Verdict>,
}

/// Joins the reports of all tasks, in any order; one may be given twice.
///
/// # Errors
/// A file that is no report of a task; tasks that are missing, or that saw other files or were asked something else than the others.
pub fn merge(paths: &[impl AsRef<Path>]) -> Result<Merged> {
    let mut reports: BTreeMap<usize, (&Path, Share, Value)> = BTreeMap::new();
    for path in paths {
        let path = path.as_ref();
        let bytes = read_file(path, MAX_BYTES, &stopped_here)
            .map_err(|error| Error::io(path, "read the report", error))?
            .ok_or_else(|| refused(path, "it is too long for a report"))?;
        let report: Value = read(&bytes, MAX_BYTES)
            .map_err(|problem| refused(path, &format!("it is no report that can be joined: {problem}")))?;
        let share = report.get("task").or_else(|| report.pointer("/runs/0/properties/task"));
        let share = share.and_then(|share| serde_json::from_value::<Share>(share.clone()).ok()).ok_or_else(|| {
            refused(path, "it is no report of a task: JSON or SARIF of validate, or a manifest, made with --task I/N")
        })?;
        if let Some((other, first)) = reports.values().map(|(path, share, _)| (path, share)).next()
            && (share.of, &share.seen, kind(&report))
                != (first.of, &first.seen, reports.values().next().and_then(|first| kind(&first.2)))
        {
            let other = text::path(other);
            return Err(refused(
                path,
                &format!(
                    "it is of other files, or of another question or number of tasks, than {other}: run all tasks on the same"
                ),
            ));
        }
        reports.insert(share.number, (path, share, report));
    }
    let Some((path, of)) = reports.values().next().map(|(path, share, _)| (*path, share.of)) else {
        return Err(Error::Argument("give the reports of all tasks".into()));
    };
    let missing: Vec<String> =
        (1..=of).filter(|number| !reports.contains_key(number)).map(|number| format!("{number}/{of}")).collect();
    if !missing.is_empty() {
        let tasks = text::plural(missing.len() as u64, "task");
        return Err(Error::Argument(format!("{tasks} of {of} missing: {}", text::listed(&missing))));
    }
    let reports: Vec<(Share, Value)> = reports.into_values().map(|(_, share, report)| (share, report)).collect();
    let merged = match kind(&reports[0].1) {
        Some("manifest") => manifests(reports).map(|report| Merged { report, failing: None }),
        Some("sarif") => Some(sarif(reports)),
        _ => validations(reports),
    };
    merged.ok_or_else(|| refused(path, "one of these reports lacks what validate or manifest writes"))
}

fn refused(path: &Path, why: &str) -> Error {
    Error::Argument(format!("{}: {why}", text::path(path)))
}

fn kind(report: &Value) -> Option<&'static str> {
    match report.get("schema").and_then(Value::as_str) {
        Some(schema) if schema.starts_with("max-weights.manifest/") => Some("manifest"),
        Some(schema) if schema.starts_with("max-weights.validate/") => Some("validate"),
        None if report.get("runs").is_some() => Some("sarif"),
        _ => None,
    }
}

fn verdict(name: Option<&str>) -> Verdict {
    ANSWERS.into_iter().find(|verdict| name == Some(verdict.name())).unwrap_or(Verdict::Clean)
}

fn worst(answers: impl Iterator<Item = Verdict>) -> Verdict {
    let rank = |verdict: &Verdict| ANSWERS.iter().position(|one| one == verdict);
    answers.max_by_key(rank).unwrap_or(Verdict::Unknown)
}

fn items(value: &mut Value, key: &str) -> Vec<Value> {
    match value.get_mut(key).map(Value::take) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

/// Numbers of an object are added, and those of objects in it.
fn add(sum: &mut Map<String, Value>, other: &Map<String, Value>) {
    for (key, value) in other {
        match (sum.get_mut(key), value) {
            (Some(Value::Object(sum)), Value::Object(other)) => add(sum, other),
            (Some(Value::Number(one)), Value::Number(two)) => {
                if let (Some(a), Some(b)) = (one.as_u64(), two.as_u64()) {
                    *one = a.saturating_add(b).into();
                }
            }
            (Some(_), _) => {}
            (None, value) => {
                sum.insert(key.clone(), value.clone());
            }
        }
    }
}

fn validations(mut reports: Vec<(Share, Value)>) -> Option<Merged> {
    let mut files: Vec<(usize, Value)> = Vec::new();
    let (mut findings, mut statistics, mut kinds) = (Vec::new(), Vec::new(), Vec::<Value>::new());
    let mut summary = Map::new();
    let mut seconds: f64 = 0.0;
    for (share, report) in &mut reports {
        let own = items(report, "files");
        if own.len() != share.places.len() {
            return None;
        }
        files.extend(share.places.iter().copied().zip(own));
        findings.extend(items(report, "findings"));
        statistics.extend(items(report, "statistics"));
        let totals = report.get_mut("summary")?;
        for kind in items(totals, "kinds") {
            match kinds.iter_mut().find(|one| one["kind"] == kind["kind"]) {
                Some(Value::Object(one)) => add(one, kind.as_object()?),
                _ => kinds.push(kind),
            }
        }
        seconds = seconds.max(totals.get("seconds")?.as_f64()?);
        let totals = totals.as_object_mut()?;
        totals.remove("kinds");
        totals.remove("seconds");
        add(&mut summary, totals);
    }
    files.sort_by_key(|(place, _)| *place);
    // Tensors are in the order of the folders, within which one task has put them in order.
    let folder = |value: &Value| Path::new(value["path"].as_str().unwrap_or_default()).parent().map(Path::to_path_buf);
    let mut order = HashMap::new();
    for (place, file) in &files {
        order.entry(folder(file)).or_insert(*place);
    }
    statistics.sort_by_key(|tensor| order.get(&folder(tensor)).copied().unwrap_or(usize::MAX));
    findings.sort_by(|a: &Value, b: &Value| {
        let path = |finding: &Value| finding["path"].as_str().unwrap_or_default().to_owned();
        Path::new(&path(a)).cmp(Path::new(&path(b)))
    });
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind["bytes"].as_u64()));
    summary.insert("seconds".to_owned(), json!(seconds));
    summary.insert("kinds".to_owned(), kinds.into());
    let fails = reports.iter().any(|(_, report)| report["fails"] == true);
    let looked = |share: &Share, report: &Value| !share.places.is_empty() || report["answer"] != "unknown";
    let answers = reports.iter().filter(|(share, report)| looked(share, report));
    let answer = worst(answers.map(|(_, report)| verdict(report["answer"].as_str())));
    let mut report = json!({
        "schema": reports[0].1["schema"],
        "version": reports[0].1["version"],
        "level": reports[0].1["level"],
        "answer": answer.name(),
        "fails": fails,
        "summary": summary,
        "files": files.into_iter().map(|(_, file)| file).collect::<Vec<_>>(),
        "findings": findings,
    });
    if !statistics.is_empty() {
        report["statistics"] = statistics.into();
    }
    Some(Merged { report, failing: fails.then_some(answer) })
}

fn sarif(mut reports: Vec<(Share, Value)>) -> Merged {
    let (mut results, mut rules, mut notifications) = (Vec::new(), Vec::<Value>::new(), Vec::new());
    for (_, report) in &mut reports {
        let run = &mut report["runs"][0];
        results.extend(items(run, "results"));
        notifications.extend(items(&mut run["invocations"][0], "toolExecutionNotifications"));
        for rule in items(&mut run["tool"]["driver"], "rules") {
            if rules.iter().all(|one| one["id"] != rule["id"]) {
                rules.push(rule);
            }
        }
    }
    let level = |result: &Value| LEVELS.iter().position(|level| result["level"] == **level);
    let severity = |result: &Value| {
        let rule = rules.iter().find(|rule| rule["id"] == result["ruleId"]);
        let severity =
            rule.and_then(|rule| rule.pointer("/properties/security-severity")?.as_str()?.parse::<f64>().ok());
        std::cmp::Reverse((severity.unwrap_or(0.0) * 10.0) as u64)
    };
    results.sort_by_key(|result| (severity(result), level(result)));
    for result in &mut results {
        result["ruleIndex"] = rules.iter().position(|rule| rule["id"] == result["ruleId"]).into();
    }
    let invocation = |report: &Value| report["runs"][0]["invocations"][0].clone();
    let time = |key: &str| {
        reports.iter().filter_map(|(_, report)| invocation(report)[key].as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    let (began, ended) = (time("startTimeUtc").into_iter().min(), time("endTimeUtc").into_iter().max());
    let mut report = reports.swap_remove(0).1;
    let run = &mut report["runs"][0];
    run["tool"]["driver"]["rules"] = rules.into();
    run["results"] = results.into();
    run["invocations"][0]["startTimeUtc"] = began.into();
    run["invocations"][0]["endTimeUtc"] = ended.into();
    run["invocations"][0]["toolExecutionNotifications"] = notifications.into();
    if let Some(run) = run.as_object_mut() {
        run.remove("properties");
    }
    Merged { report, failing: None }
}

fn manifests(reports: Vec<(Share, Value)>) -> Option<Value> {
    let mut reports = reports
        .into_iter()
        .map(|(_, report)| serde_json::from_value(report).ok())
        .collect::<Option<Vec<Manifest>>>()?;
    let mut whole = reports.swap_remove(0);
    for part in reports {
        whole.files.extend(part.files);
        whole.tensors.extend(part.tensors);
    }
    whole.files.sort_by(|a, b| a.path.cmp(&b.path));
    whole.tensors.sort_by(|a, b| a.file.cmp(&b.file));
    let contents = whole.tensors.iter().filter_map(|tensor| bytes_of(tensor.content.as_deref()?)?.try_into().ok());
    whole.content = hexadecimal(&set_hash(contents));
    whole.task = None;
    serde_json::to_value(whole).ok()
}
