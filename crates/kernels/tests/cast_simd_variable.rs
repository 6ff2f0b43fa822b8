//! The environment variable that forces a level is read once in a process, so each value is tried in a separate process.

use std::process::Command;

use max_weights_kernels::cast::{CastOptions, cast};
use max_weights_kernels::dtype::DType;
use max_weights_kernels::simd::{LEVEL_VARIABLE, Level};

const CHILD: &str = "MAX_WEIGHTS_TEST_CHILD";

/// In a child process: casts once and prints the outcome.
fn report() {
    let mut dst = [0; 2];
    match cast(DType::Float32, DType::BFloat16, &1f32.to_le_bytes(), &mut dst, CastOptions::default()) {
        Ok(()) => println!("level {} gives {dst:02x?}", Level::chosen().expect("it just worked")),
        Err(error) => println!("error: {error}"),
    }
}

/// The output of [`report`] in a child process: this program, told to run the first test below.
fn with_variable(value: &str) -> String {
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "cast_simd_variable::each_available_level_can_be_forced", "--nocapture"])
        .env(CHILD, "1")
        .env(LEVEL_VARIABLE, value)
        .output()
        .expect("a child process");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn each_available_level_can_be_forced() {
    if std::env::var_os(CHILD).is_some() {
        return report();
    }
    for level in Level::available() {
        let message = with_variable(level.name());
        assert!(message.contains(&format!("level {level} gives [80, 3f]")), "{message}");
    }
}

#[test]
fn an_unknown_level_is_an_error_that_names_the_choices() {
    let message = with_variable("sse9");
    assert!(message.contains("error: MAX_WEIGHTS_SIMD=\"sse9\" is unknown"), "{message}");
    for level in Level::available() {
        assert!(message.contains(level.name()), "{message}");
    }
}
