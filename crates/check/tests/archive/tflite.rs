//! TensorFlow Lite models, whose flatbuffers are put together by hand.

use max_weights::rules::Verdict;
use max_weights_check::ValidateOptions;

use super::build::{check_with, found, member, rules, zip};

const NONE: [&str; 0] = [];
/// The number of operators that have a name.
const CUSTOM: i8 = 32;

/// A model that needs these operators: their numbers, and their names.
fn model(operators: &[(i8, &str)]) -> Vec<u8> {
    // The root, the magic; the fields of a model, of which the second one is at 4; the model, followed by its list.
    let mut file = b"\x14\0\0\0TFL3".to_vec();
    file.extend(b"\x08\0\x08\0\0\0\x04\0\0\0\0\0");
    file.extend(b"\x0c\0\0\0\x04\0\0\0");
    file.extend((operators.len() as u32).to_le_bytes());
    let list = file.len();
    file.resize(list + 4 * operators.len(), 0);
    for (number, (code, name)) in operators.iter().enumerate() {
        // The fields of an operator: the old number at 4, the name at 8, no version, the number at 12.
        file.extend(b"\x0c\0\x10\0\x04\0\x08\0\0\0\x0c\0");
        let (at, entry) = (file.len(), list + 4 * number);
        file[entry..entry + 4].copy_from_slice(&((at - entry) as u32).to_le_bytes());
        file.extend(12i32.to_le_bytes());
        file.extend([*code as u8, 0, 0, 0]);
        file.extend(8u32.to_le_bytes());
        file.extend(i32::from(*code).to_le_bytes());
        file.extend((name.len() as u32).to_le_bytes());
        file.extend(name.as_bytes());
        file.extend([0; 4]);
    }
    file
}

#[test]
fn operators_of_tensorflow_lite_break_no_rule_and_others_are_named() {
    let fine = [(9, "ignored"), (CUSTOM, "TFLite_Detection_PostProcess"), (0, "")];
    assert_eq!(found("m.tflite", &model(&fine)), NONE);
    assert_eq!(found("m.tflite", &model(&[])), NONE);
    let report = check_with("m.tflite", &model(&[(9, ""), (CUSTOM, "MyOperator")]), &ValidateOptions::default());
    assert_eq!((rules(&report), report.answer()), (vec!["tflite.custom"], Verdict::NeedsTrust));
    assert!(report.findings[0].message.ends_with("MyOperator"), "{report:?}");
    let report = check_with("m.tflite", &model(&[(CUSTOM, "FlexErf")]), &ValidateOptions::default());
    assert_eq!((rules(&report), report.answer()), (vec!["tflite.flex"], Verdict::Clean));
    let report = check_with("m.tflite", &model(&[(CUSTOM, "FlexWriteFile")]), &ValidateOptions::default());
    assert_eq!((rules(&report), report.answer()), (vec!["tensorflow.operation"], Verdict::NeedsTrust));
}

#[test]
fn a_model_of_tensorflow_lite_whose_operators_are_not_there_is_damaged() {
    let whole = model(&[(CUSTOM, "MyOperator")]);
    for len in 8..whole.len() - 4 {
        assert_eq!(found("m.tflite", &whole[..len]), ["tflite.damaged"], "{len}");
    }
    for (at, bytes) in [(0, [0xff; 4]), (20, [0xff; 4]), (24, [0xff; 4]), (28, [0xff, 0xff, 0xff, 0x7f])] {
        let mut broken = whole.clone();
        broken[at..at + 4].copy_from_slice(&bytes);
        assert_eq!(found("m.tflite", &broken), ["tflite.damaged"], "byte {at}");
    }
}

#[test]
fn the_metadata_of_a_model_of_tensorflow_lite_are_an_archive_behind_it() {
    let labels = zip(&[member("labels.txt", b"cat\ndog\n")]);
    assert_eq!(found("m.tflite", &[model(&[]), labels.clone()].concat()), NONE);
    assert_eq!(found("m.tflite", &[model(&[(CUSTOM, "Mine")]), labels.clone()].concat()), ["tflite.custom"]);
    let report = check_with("m.pt", &[model(&[]), labels].concat(), &ValidateOptions::default());
    assert!(rules(&report).contains(&"container.polyglot"), "{report:?}");
    let code = b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.";
    let report =
        check_with("m.tflite", &[model(&[]), zip(&[member("labels.txt", code)])].concat(), &ValidateOptions::default());
    assert_eq!(report.answer(), Verdict::Malicious);
}
