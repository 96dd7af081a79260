//! Makes the jitdump file under the first free name, and checks whether other programs or libraries have truncated it or write
//! to it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::Jitdump;
use crate::format::file_names::{FileKind, JITDUMPS};
use crate::format::jitdump::HEADER_SIZE;
use crate::sys::file::{self, Held};
use crate::sys::other_writers;

impl Jitdump {
    /// Makes a file under the first name that nobody else uses.
    pub(super) fn make(&mut self) -> io::Result<File> {
        let before = self.contents.own.name().to_owned();
        let mut zeros = 0;
        loop {
            self.contents.own.set_name(FileKind::Jitdump { zeros }.name(self.status.pid).as_ref());
            let claimed = self.contents.own.claim().inspect_err(|_| self.contents.own.set_name(&before));
            match claimed {
                Err(error) if file::is_anothers(&error) && zeros + 1 < JITDUMPS => zeros += 1,
                Err(error) if file::is_anothers(&error) => {
                    let text = format!("{error}, and all other names for it are taken");
                    return Err(io::Error::new(error.kind(), text));
                }
                claimed => return claimed,
            }
        }
    }

    /// Whether the file begins with the header that this sink wrote.
    pub(super) fn is_ours(&self, file: &File) -> bool {
        let mut found = [0; HEADER_SIZE];
        file.read_exact_at(&mut found, 0).is_ok() && found == self.header
    }

    /// Whether somebody has truncated the file or overwritten its header.
    pub(super) fn is_cut(&self) -> bool {
        let file = self.contents.own.held().and_then(Held::checked_len).ok();
        !self.dead && file.is_some_and(|(file, len)| len < self.len || !self.is_ours(file))
    }

    /// Whether another library in this process uses the sink's file, or uses a different file that now has the name of the
    /// sink's file. If the result is true, the sink must no longer use the name. If `is_cut` is true, also waits a short time
    /// for a library that is about to open the file.
    pub(super) fn is_taken(&mut self, is_cut: bool) -> bool {
        let Some(identity) = self.contents.own.identity else { return false };
        let file = self.contents.own.held().and_then(Held::checked).ok();
        let writes = |file| self.status.aside(|| other_writers::writes_or_will(identity, Some(file), is_cut));
        if file.is_some_and(writes) {
            return true;
        }
        let Ok((dir, name)) = self.contents.own.place() else { return false };
        dir.identity_of(name).is_ok_and(|named| !named.is(&identity) && other_writers::uses(dir, name, named))
    }
}
