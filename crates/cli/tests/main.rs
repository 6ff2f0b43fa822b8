//! The tests of the command line, in one program.

mod commands;
mod common;
mod completion;
mod ends;
mod pages;
mod shells;
