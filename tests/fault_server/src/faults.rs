//! Faults by name, and which requests they hit.

use std::collections::HashSet;
use std::io;
use std::sync::Mutex;
use std::time::Duration;

use crate::counts::lock;
use crate::http::Head;
use crate::s3::Operation;
use crate::text::decode_percent;

/// The faults. The table below has the name of each, and src/lib.rs describes it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fault {
    SlowDown,
    RetryAfter(u64),
    RateLimit(u64),
    ErrorIn200,
    Denied,
    ExpiredToken,
    ClockSkew,
    ResetBeforeHead,
    StallBeforeHead(Duration),
    RedirectLoop,
    RedirectTo(String),
    LinkExpiresAfter(u64),
    Deleted,
    OtherTag,
    OtherTagInBody,
    NoTag,
    Grows,
    Shrinks,
    IfMatchIgnored,
    ShiftedRange,
    OtherTotal,
    NoContentRange,
    Whole200,
    Whole200RightRange,
    /// A name.
    Lists(String),
    Gzip,
    Chunked,
    ShortAdjusted,
    ShortBody,
    ResetInBody(u64),
    Stall(Duration),
    Drip,
    Corrupt,
    PartFails,
    PartTooSmall,
    Md5Tags,
    CompleteFails,
    CompleteErrorIn200,
    PreconditionFails,
}

/// The names, with what follows `=`.
pub(crate) const NAMES: &str = "slow-down, 429-retry-after=SECONDS, 429-ratelimit=SECONDS, 500-in-200, denied, \
    expired-token, clock-skew, reset-before-head, stall-before-head=SECONDS, redirect-loop, redirect-to=URL, \
    link-expires-after=N, deleted=N, etag-changes=N, etag-changes-in-body, no-etag, grows=N, shrinks=N, \
    if-match-ignored, shifted-range, other-total, no-content-range, whole-200, whole-200-right-range, lists=NAME, gzip, chunked, \
    short-adjusted, short-body, reset-in-body=BYTES, stall=SECONDS, drip, corrupt, part-fails, part-too-small, md5-tags, \
    complete-fails, complete-error-in-200, precondition-fails";

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

pub(crate) fn number(name: &str, text: &str) -> io::Result<u64> {
    text.parse().map_err(|_| invalid(format!("{name}={text}: a number was expected")))
}

impl Fault {
    /// The fault with this name and the argument after `=`; `None` for an unknown name.
    fn named(name: &str, argument: &str) -> io::Result<Option<Self>> {
        let whole = || number(name, argument);
        let seconds = || {
            let seconds = argument.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            seconds.ok_or_else(|| invalid(format!("{name}={argument}: a number of seconds was expected")))
        };
        Ok(Some(match name {
            "slow-down" => Self::SlowDown,
            "429-retry-after" => Self::RetryAfter(whole()?),
            "429-ratelimit" => Self::RateLimit(whole()?),
            "500-in-200" => Self::ErrorIn200,
            "denied" => Self::Denied,
            "expired-token" => Self::ExpiredToken,
            "clock-skew" => Self::ClockSkew,
            "reset-before-head" => Self::ResetBeforeHead,
            "stall-before-head" => Self::StallBeforeHead(seconds()?),
            "redirect-loop" => Self::RedirectLoop,
            "redirect-to" => Self::RedirectTo(argument.to_owned()),
            "link-expires-after" => Self::LinkExpiresAfter(whole()?),
            "deleted" => Self::Deleted,
            "etag-changes" => Self::OtherTag,
            "etag-changes-in-body" => Self::OtherTagInBody,
            "no-etag" => Self::NoTag,
            "grows" => Self::Grows,
            "shrinks" => Self::Shrinks,
            "if-match-ignored" => Self::IfMatchIgnored,
            "shifted-range" => Self::ShiftedRange,
            "other-total" => Self::OtherTotal,
            "no-content-range" => Self::NoContentRange,
            "whole-200" => Self::Whole200,
            "whole-200-right-range" => Self::Whole200RightRange,
            "lists" => {
                let name = decode_percent(argument);
                Self::Lists(
                    name.ok_or_else(|| invalid(format!("lists={argument}: a percent-encoded name was expected")))?,
                )
            }
            "gzip" => Self::Gzip,
            "chunked" => Self::Chunked,
            "short-adjusted" => Self::ShortAdjusted,
            "short-body" => Self::ShortBody,
            "reset-in-body" => Self::ResetInBody(whole()?),
            "stall" => Self::Stall(seconds()?),
            "drip" => Self::Drip,
            "corrupt" => Self::Corrupt,
            "part-fails" => Self::PartFails,
            "part-too-small" => Self::PartTooSmall,
            "md5-tags" => Self::Md5Tags,
            "complete-fails" => Self::CompleteFails,
            "complete-error-in-200" => Self::CompleteErrorIn200,
            "precondition-fails" => Self::PreconditionFails,
            _ => return Ok(None),
        }))
    }

    /// Whether the number behind `=` is that of the first request which is hit.
    fn is_from(&self) -> bool {
        matches!(self, Self::Deleted | Self::OtherTag | Self::Grows | Self::Shrinks)
    }

    /// Whether this can befall such a request.
    fn is_for(&self, head: &Head, operation: Operation) -> bool {
        let has_body = head.method == "GET" && matches!(operation, Operation::Read | Operation::List);
        match self {
            Self::RedirectLoop | Self::RedirectTo(_) => matches!(head.method.as_str(), "GET" | "HEAD"),
            Self::LinkExpiresAfter(_) => head.path.starts_with("/cdn/"),
            Self::Deleted | Self::OtherTag | Self::Grows | Self::Shrinks | Self::NoTag | Self::IfMatchIgnored => {
                operation == Operation::Read
            }
            Self::ShiftedRange
            | Self::OtherTotal
            | Self::NoContentRange
            | Self::Whole200
            | Self::Whole200RightRange => operation == Operation::Read && head.header("range").is_some(),
            Self::Lists(_) => has_body && operation == Operation::List,
            Self::OtherTagInBody | Self::Corrupt => has_body && operation == Operation::Read,
            Self::Gzip
            | Self::Chunked
            | Self::ShortAdjusted
            | Self::ShortBody
            | Self::ResetInBody(_)
            | Self::Stall(_)
            | Self::Drip => has_body,
            Self::PartFails => operation == Operation::Part,
            Self::Md5Tags => matches!(operation, Operation::Put | Operation::Part | Operation::Complete),
            Self::PartTooSmall | Self::CompleteFails | Self::CompleteErrorIn200 => operation == Operation::Complete,
            Self::PreconditionFails => matches!(operation, Operation::Put | Operation::Complete),
            Self::SlowDown
            | Self::RetryAfter(_)
            | Self::RateLimit(_)
            | Self::ErrorIn200
            | Self::Denied
            | Self::ExpiredToken
            | Self::ClockSkew
            | Self::ResetBeforeHead
            | Self::StallBeforeHead(_) => true,
        }
    }
}

/// A fault, and which of the requests that it can befall it hits.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    fault: Fault,
    /// The first request that is hit, from 1.
    from: u64,
    times: Option<u64>,
    percent: Option<u64>,
    path: Option<String>,
    method: Option<String>,
    /// The state of the generator that `percent` takes numbers from.
    random: u64,
    seen: u64,
}

impl Rule {
    fn new(fault: Fault) -> Self {
        let (times, percent, path, method) = (None, None, None, None);
        Self { fault, from: 1, times, percent, path, method, random: scrambled(1), seen: 0 }
    }

    fn set(&mut self, name: &str, value: &str) -> io::Result<bool> {
        match name {
            "from" => self.from = number(name, value)?,
            "times" => self.times = Some(number(name, value)?),
            "percent" => self.percent = Some(number(name, value)?),
            "path" => self.path = Some(value.to_owned()),
            "method" => self.method = Some(value.to_owned()),
            "seed" => self.random = scrambled(number(name, value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn hits(&mut self, head: &Head, operation: Operation) -> bool {
        let contains = |text: &String| head.path.contains(text.as_str()) || head.target.contains(text.as_str());
        let is_requested =
            self.path.as_ref().is_none_or(contains) && self.method.as_ref().is_none_or(|m| *m == head.method);
        if !is_requested || !self.fault.is_for(head, operation) {
            return false;
        }
        self.seen += 1;
        if self.seen < self.from || self.times == Some(0) {
            return false;
        }
        if let Some(percent) = self.percent {
            // xorshift64: the same requests are hit in each run.
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            if self.random % 100 >= percent {
                return false;
            }
        }
        self.times = self.times.map(|times| times - 1);
        true
    }
}

/// A state of the generator that is not zero, and differs in all bits between near seeds.
fn scrambled(seed: u64) -> u64 {
    (seed.wrapping_add(1)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// The rules that words are: a name of a fault begins one, and the options behind it belong to it.
pub(crate) fn rules(text: &str) -> io::Result<Vec<Rule>> {
    let mut rules: Vec<Rule> = Vec::new();
    for word in text.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty()) {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        if let Some(fault) = Fault::named(name, value)? {
            let mut rule = Rule::new(fault);
            if rule.fault.is_from() {
                rule.from = if value.is_empty() { 2 } else { number(name, value)? };
            }
            rules.push(rule);
            continue;
        }
        if !rules.last_mut().map_or(Ok(false), |rule| rule.set(name, value))? {
            let options = "behind each, from=N, times=N, percent=P, seed=N, path=TEXT, method=NAME";
            return Err(invalid(format!("there is no fault {name:?}; there are {NAMES}; {options}")));
        }
    }
    Ok(rules)
}

/// The faults of a server.
#[derive(Default)]
pub(crate) struct Faults {
    rules: Mutex<Vec<Rule>>,
    /// The paths of objects that were replaced while they were sent.
    replaced: Mutex<HashSet<String>>,
}

impl Faults {
    /// Only these from now on.
    pub(crate) fn set(&self, rules: Vec<Rule>) {
        *lock(&self.rules) = rules;
        lock(&self.replaced).clear();
    }

    /// What befalls this request.
    pub(crate) fn choose(&self, head: &Head, operation: Operation) -> Vec<Fault> {
        let mut replaced = lock(&self.replaced);
        let is_replaced = replaced.contains(&head.path);
        let mut chosen: Vec<Fault> = Vec::new();
        for rule in lock(&self.rules).iter_mut() {
            if !(is_replaced && rule.fault == Fault::OtherTagInBody) && rule.hits(head, operation) {
                chosen.push(rule.fault.clone());
            }
        }
        if is_replaced {
            chosen.push(Fault::OtherTag);
        }
        if chosen.contains(&Fault::OtherTagInBody) {
            replaced.insert(head.path.clone());
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(line: &str) -> Head {
        Head::parse(format!("{line} HTTP/1.1\r\n\r\n").as_bytes()).expect("a head")
    }

    fn hits(rules_text: &str, count: usize) -> Vec<bool> {
        let faults = Faults::default();
        faults.set(rules(rules_text).expect("rules"));
        let head = head("GET /files/model");
        (0..count).map(|_| !faults.choose(&head, Operation::Read).is_empty()).collect()
    }

    #[test]
    fn rules_say_which_requests_are_hit() {
        assert_eq!(hits("slow-down times=2", 3), [true, true, false]);
        assert_eq!(hits("slow-down from=2,times=1", 3), [false, true, false]);
        assert_eq!(hits("etag-changes=3", 3), [false, false, true]);
        assert_eq!(hits("grows", 2), [false, true]);
        assert_eq!(hits("slow-down path=mode method=GET", 1), [true]);
        assert_eq!(hits("slow-down path=other", 1), [false]);
        assert_eq!(hits("slow-down method=PUT", 1), [false]);
        assert_eq!(hits("", 1), [false]);
        let tenth = hits("slow-down percent=10", 1000);
        assert_eq!(tenth, hits("slow-down percent=10", 1000));
        assert_ne!(tenth, hits("slow-down percent=10 seed=2", 1000));
        let count = tenth.iter().filter(|hit| **hit).count();
        assert!((60..140).contains(&count), "{count}");
    }

    #[test]
    fn faults_befall_what_they_can() {
        let faults = Faults::default();
        faults.set(rules("part-fails whole-200 corrupt").expect("rules"));
        assert_eq!(faults.choose(&head("GET /files/model"), Operation::Read), [Fault::Corrupt]);
        assert_eq!(faults.choose(&head("HEAD /files/model"), Operation::Read), []);
        assert_eq!(faults.choose(&head("PUT /s3/b/k?partNumber=1&uploadId=2"), Operation::Part), [Fault::PartFails]);
    }

    #[test]
    fn what_is_no_fault_is_an_error_that_lists_them() {
        for text in [
            "rubbish",
            "times=2",
            "slow-down often",
            "stall=x",
            "stall=-1",
            "lists=%zz",
            "429-retry-after",
            "slow-down times=x",
        ] {
            assert!(rules(text).is_err(), "{text}");
        }
        assert!(rules("rubbish").expect_err("an error").to_string().contains("slow-down"));
        let known = NAMES.split(", ").map(|name| name.split('=').next().unwrap_or_default());
        for name in known {
            assert!(Fault::named(name, "1").expect("an argument").is_some(), "{name}");
        }
    }
}
