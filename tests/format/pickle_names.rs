//! The names of classes and functions in a pickle: which of them would be imported, and what is known of that.

use max_weights::format::pickle::{Danger, GlobalUse, PersistentIds, PickleLimits, read};

fn listed(bytes: &[u8]) -> Vec<GlobalUse> {
    read(bytes, 0, &PickleLimits::default(), PersistentIds::Zip).unwrap_or_else(|error| panic!("{error}")).globals
}

#[track_caller]
fn only(bytes: &[u8], name: &str, verdict: Danger) -> GlobalUse {
    let mut globals = listed(bytes);
    assert_eq!(globals.len(), 1);
    let global = globals.remove(0);
    assert_eq!((global.full_name().as_str(), global.danger), (name, verdict));
    global
}

#[test]
fn names_of_python_2_are_those_that_are_imported() {
    // So torch.save writes subprocess.Popen, whose protocol is 2.
    only(b"\x80\x02ccommands\nPopen\n(S'echo hi'\ntR.", "subprocess.Popen", Danger::RunsCode);
    only(b"\x80\x02c__builtin__\nreduce\n)R.", "functools.reduce", Danger::RunsCode);
    only(b"\x80\x02cexceptions\nValueError\n)R.", "builtins.ValueError", Danger::Library);
    let spelled = only(b"\x80\x02cQueue\nQueue\n)R.", "queue.Queue", Danger::NeedsTrust);
    assert_eq!((spelled.module.as_str(), spelled.name.as_str()), ("Queue", "Queue"));
}

#[test]
fn a_pickle_that_says_no_protocol_has_names_of_python_2() {
    only(b"ccPickle\nloads\n(S'.'\ntR.", "pickle.loads", Danger::RunsCode);
    only(b"(S'echo hi'\nicommands\ngetoutput\n.", "subprocess.getoutput", Danger::RunsCode);
}

#[test]
fn from_protocol_3_on_a_name_is_what_it_says_and_does_harm_to_whoever_takes_it_for_old() {
    only(b"\x80\x04\x8c\x08commands\x8c\x05Popen\x93)R.", "commands.Popen", Danger::RunsCode);
    only(b"\x80\x03ccPickle\nloads\n)R.", "cPickle.loads", Danger::RunsCode);
    only(b"\x80\x03cQueue\nQueue\n)R.", "Queue.Queue", Danger::NeedsTrust);
}

#[test]
fn a_protocol_that_changes_changes_what_is_imported() {
    let both = b"\x80\x04cQueue\nQueue\n0\x80\x02cQueue\nQueue\n0cos\npath\n0\x80\x04cos\npath\n0cQueue\nQueue\n.";
    let globals = listed(both);
    let names: Vec<String> = globals.iter().map(GlobalUse::full_name).collect();
    assert_eq!(names, ["Queue.Queue", "queue.Queue", "os.path"], "each once");
    assert!(!globals[0].is_same(&globals[1]));
}
