//! A folder as a network disk would show it: the files of another folder, read-only, each read after a delay.
//!
//! `network_disk FOLDER MOUNT_POINT MILLISECONDS` mounts it by FUSE until it is unmounted.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, UNIX_EPOCH};
use std::{env, io};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEntry, ReplyOpen, Request,
};

/// How long the kernel may cache names and attributes: they do not change.
const KEPT: Duration = Duration::from_secs(3600);
/// Requests answered concurrently: as many as an NFS client has in flight.
const SLOTS: u16 = 64;
/// The inode of the first file; that of the folder is 1.
const FIRST: u64 = 2;

struct NetworkDisk {
    /// In the order of their inodes.
    files: Vec<(PathBuf, File)>,
    delay: Duration,
}

impl NetworkDisk {
    fn new(folder: &str, delay: Duration) -> io::Result<Self> {
        let mut files = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_file() {
                files.push((path.clone(), File::open(path)?));
            }
        }
        Ok(Self { files, delay })
    }

    fn file(&self, inode: INodeNo) -> Option<&(PathBuf, File)> {
        self.files.get(usize::try_from(inode.0.checked_sub(FIRST)?).ok()?)
    }

    fn attributes(&self, inode: INodeNo) -> Result<FileAttr, Errno> {
        let mut found = FileAttr {
            ino: inode,
            size: 0,
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: FileType::Directory,
            perm: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: 4096,
        };
        if inode != INodeNo::ROOT {
            let (_, file) = self.file(inode).ok_or(Errno::ENOENT)?;
            let facts = file.metadata().map_err(|_| Errno::EIO)?;
            found = FileAttr {
                size: facts.len(),
                blocks: facts.blocks(),
                mtime: facts.modified().unwrap_or(UNIX_EPOCH),
                kind: FileType::RegularFile,
                perm: 0o644,
                nlink: 1,
                ..found
            };
        }
        Ok(found)
    }
}

impl Filesystem for NetworkDisk {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let _ = config.set_max_background(SLOTS);
        let _ = config.set_congestion_threshold(SLOTS);
        Ok(())
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let position = self.files.iter().position(|(path, _)| path.file_name() == Some(name));
        match position.map(|position| self.attributes(INodeNo(position as u64 + FIRST))) {
            Some(Ok(found)) => reply.entry(&KEPT, &found, Generation(0)),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Ok(found) => reply.attr(&KEPT, &found),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        sleep(self.delay);
        let mut bytes = vec![0; size as usize];
        let Some((_, file)) = self.file(inode) else { return reply.error(Errno::ENOENT) };
        let mut len = 0;
        while len < bytes.len() {
            match file.read_at(&mut bytes[len..], offset + len as u64) {
                Ok(0) => break,
                Ok(read) => len += read,
                Err(_) => return reply.error(Errno::EIO),
            }
        }
        reply.data(&bytes[..len]);
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        for (i, (path, _)) in self.files.iter().enumerate().skip(offset as usize) {
            if reply.add(
                INodeNo(i as u64 + FIRST),
                i as u64 + 1,
                FileType::RegularFile,
                path.file_name().unwrap_or_default(),
            ) {
                break;
            }
        }
        reply.ok();
    }
}

fn main() -> io::Result<()> {
    let given: Vec<String> = env::args().collect();
    let [_, folder, mount_point, milliseconds] = &given[..] else {
        return Err(io::Error::other("usage: network_disk FOLDER MOUNT_POINT MILLISECONDS"));
    };
    let delay = Duration::from_secs_f64(milliseconds.parse::<f64>().map_err(io::Error::other)? / 1000.0);
    let mut config = Config::default();
    config.mount_options.extend([MountOption::RO, MountOption::FSName("network_disk".into())]);
    config.n_threads = Some(SLOTS.into());
    fuser::mount(NetworkDisk::new(folder, delay)?, mount_point, &config)
}
