//! A folder for inputs that have to be files, in memory where the system has a place there.

use std::cell::RefCell;
use std::path::Path;

use tempfile::TempDir;

thread_local! {
    static FOLDER: RefCell<Option<TempDir>> = const { RefCell::new(None) };
}

/// Runs `check` in the folder of this thread.
pub fn in_folder(check: impl FnOnce(&Path)) {
    FOLDER.with_borrow_mut(|folder| {
        let folder = folder.get_or_insert_with(|| {
            let memory = Path::new("/dev/shm");
            let made = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
            made.expect("a folder for the input")
        });
        check(folder.path());
    });
}
