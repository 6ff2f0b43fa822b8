//! Opening files, folders and sets of files.

mod distributed;
mod distributed_compressed;
mod findings;
mod gguf_split;
mod sniff;
mod source;
