//! The server as a client sees it, over sockets of std.
#![allow(clippy::expect_used, clippy::panic)] // helpers of tests fail as tests do

mod client;
mod faults;
mod files;
mod hub;
mod multipart;
mod program;
mod s3;
mod server;
