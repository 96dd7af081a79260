//! Reads and writes files in signal handlers: without allocating memory, and without a lock.

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use rustix::fs::{openat, Mode, OFlags, CWD};
use rustix::io::{pread, read};

/// A file that is open for reading.
pub struct File(OwnedFd);

impl File {
    pub fn open(path: &CStr) -> Option<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        openat(CWD, path, flags, Mode::empty()).ok().map(File)
    }

    /// Reads at most `out.len()` bytes at an offset. `None` if no byte can be read.
    pub fn read_at<'o>(&self, offset: u64, out: &'o mut [u8]) -> Option<&'o [u8]> {
        let len = pread(&self.0, &mut *out, offset).ok().filter(|len| *len > 0)?;
        out.get(..len)
    }
}

/// Reads the path that a symbolic link contains. `None` if `out` is too small for it.
pub fn read_link<'o>(path: &CStr, out: &'o mut [u8]) -> Option<&'o [u8]> {
    // SAFETY: the path ends with a NUL, and there is room for the result.
    let len = unsafe { libc::readlink(path.as_ptr(), out.as_mut_ptr().cast(), out.len()) };
    usize::try_from(len).ok().filter(|len| *len < out.len()).and_then(|len| out.get(..len))
}

/// Writes all bytes to a descriptor of the host, as far as the descriptor takes them.
pub fn write_to(descriptor: i32, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: the bytes are valid. The kernel checks the descriptor.
        let written = unsafe { libc::write(descriptor, bytes.as_ptr().cast(), bytes.len()) };
        match usize::try_from(written) {
            Ok(len @ 1..) => bytes = &bytes[len.min(bytes.len())..],
            _ if errno::errno().0 == libc::EINTR => {}
            _ => return,
        }
    }
}

/// The lines of a file. Lines of more than `LEN` bytes are cut into several lines.
pub struct Lines<const LEN: usize> {
    file: File,
    buffer: [u8; LEN],
    from: usize,
    to: usize,
}

impl<const LEN: usize> Lines<LEN> {
    pub fn of(file: File) -> Lines<LEN> {
        Lines { file, buffer: [0; LEN], from: 0, to: 0 }
    }

    /// The next line, without the newline. The last line must end with a newline.
    pub fn next_line(&mut self) -> Option<&[u8]> {
        loop {
            let rest = self.buffer.get(self.from..self.to)?;
            let end = rest.iter().position(|&byte| byte == b'\n');
            if end.is_some() || rest.len() == LEN {
                let line = self.from..self.from + end.unwrap_or(rest.len());
                self.from = line.end + usize::from(end.is_some());
                return self.buffer.get(line);
            }
            self.buffer.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
            self.to += read(&self.file.0, self.buffer.get_mut(self.to..)?).ok().filter(|len| *len > 0)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn lines_of_all_lengths() {
        let path = std::env::temp_dir().join(format!("jitsym-lines-{}", std::process::id()));
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(b"\nab\nabcdefgh\nabcdefghij\nz\nrest").unwrap();
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let mut lines = Lines::<8>::of(File::open(&name).unwrap());
        std::fs::remove_file(&path).unwrap();
        let mut found = Vec::new();
        while let Some(line) = lines.next_line() {
            found.push(String::from_utf8(line.to_vec()).unwrap());
        }
        assert_eq!(found, ["", "ab", "abcdefgh", "", "abcdefgh", "ij", "z"]);
    }
}
