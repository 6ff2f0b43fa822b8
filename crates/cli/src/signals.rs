//! Signals that end a command: what is temporary goes first, and the process ends as it does without this.
//!
//! Files that are being put into their places get there before: that takes moments.

#[cfg(unix)]
pub(crate) use unix::watch;

#[cfg(unix)]
mod unix {
    use std::sync::mpsc::channel;
    use std::thread;

    use max_weights::write;
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::iterator::{Handle, Signals};
    use signal_hook::low_level::emulate_default_handler;

    /// Signals that are waited for until this is dropped.
    pub(crate) struct Watch(Option<Handle>);

    impl Drop for Watch {
        fn drop(&mut self) {
            if let Some(handle) = &self.0 {
                handle.close();
            }
        }
    }

    /// Waits for signals on a separate thread: a thread that waits for a disk does not check for them.
    pub(crate) fn watch() -> Watch {
        let (sender, receiver) = channel();
        let watched = to_watch();
        let wait = move || {
            let Ok(mut signals) = Signals::new(watched) else { return };
            if sender.send(signals.handle()).is_err() {
                return;
            }
            if let Some(signal) = signals.forever().next() {
                write::end();
                let _ = emulate_default_handler(signal);
            }
        };
        // Without a thread, signals end the process as they do.
        let began = thread::Builder::new().name("max_weights-signals".into()).spawn(wait);
        Watch(began.ok().and_then(|_| receiver.recv().ok()))
    }

    /// A process that was started with `nohup`, or in the background, keeps ignoring ignored signals.
    fn to_watch() -> Vec<i32> {
        let ignored = ignored();
        [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0).collect()
    }

    /// A bit for each signal, from 1 on.
    fn ignored() -> u64 {
        #[cfg(target_os = "linux")]
        {
            let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
            let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
            mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
        }
        // Who ignores what is not known there: a hang-up, which `nohup` makes programs ignore, is left alone.
        #[cfg(not(target_os = "linux"))]
        {
            1 << (SIGHUP - 1)
        }
    }
}

/// Elsewhere, the next command that writes into the folder removes leftover files.
#[cfg(not(unix))]
pub(crate) fn watch() {}
