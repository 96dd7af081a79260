//! Keeps the reason why the last call of a thread was refused. The code that refuses a call notes the reason here. The text of
//! the reason is made only when the host requests the text.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::panic_guard;

/// Why a call was refused.
#[derive(Clone, Copy, Debug)]
pub struct Refusal {
    /// The serial number of this failure. The failures of a process are numbered in the order in which they happen.
    pub number: u64,
    /// The process in which the call was refused. A refusal of the parent's thread, which the child's thread still has after a
    /// fork, is ignored in the child.
    pid: u32,
    /// The number of the error; 0 if no call was refused.
    pub error: u32,
    /// A text in which `{}` stands for a number, and `{x}` for a number in hexadecimal digits. Empty if no text was noted.
    text: &'static str,
    numbers: [u64; 3],
    /// The name of the code that was not registered. A long name is cut, and a short name is followed by NULs. If there is no
    /// name, all bytes are NULs.
    code: [u8; NAME_MOST],
}

/// How many bytes of a name are kept.
const NAME_MOST: usize = 64;

const NONE: Refusal = Refusal { number: 0, pid: 0, error: 0, text: "", numbers: [0; 3], code: [0; NAME_MOST] };

thread_local! {
    /// The reason that was noted last, in the current call or in an earlier call.
    static NOTED: Cell<Refusal> = const { Cell::new(NONE) };
    /// The last refusal of this thread. `tell` stores the refusal here, and `last` returns the refusal.
    static TOLD: Cell<Refusal> = const { Cell::new(NONE) };
}

static LAST: AtomicU64 = AtomicU64::new(0);

/// Counts a failure, and returns its number.
pub fn next_number() -> u64 {
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Notes why a call fails with this error. Must be called before the error is returned.
#[cold]
#[inline(never)]
pub fn note(error: u32, text: &'static str, numbers: [u64; 3]) {
    NOTED.set(Refusal { error, text, numbers, ..NONE });
    panic_guard::set_noted();
}

/// Returns the current call's note for this error. If there is no note for this error, the returned `Refusal` has an empty
/// text. A note for another error is ignored, because the library has overcome the problem that caused the note.
fn noted(error: u32) -> Refusal {
    let noted = NOTED.get();
    if noted.error == error && panic_guard::has_noted() {
        noted
    } else {
        Refusal { error, ..NONE }
    }
}

/// Notes the name of the code that is not registered because of an error. Must be called before the error is returned.
#[cold]
#[inline(never)]
pub fn note_code(error: u32, name: &[u8]) {
    let mut refusal = noted(error);
    let name = &name[..name.len().min(NAME_MOST)];
    refusal.code[..name.len()].copy_from_slice(name);
    NOTED.set(refusal);
    panic_guard::set_noted();
}

/// Keeps a refusal for `last`, and returns it. Must be called when a call of this thread is refused with an error.
pub fn tell(error: u32) -> Refusal {
    let refusal = noted(error);
    NOTED.set(NONE);
    TOLD.set(Refusal { number: next_number(), pid: std::process::id(), ..refusal });
    TOLD.get()
}

/// The last refusal of this thread in this process.
pub fn last() -> Refusal {
    Some(TOLD.get()).filter(|told| told.pid == std::process::id()).unwrap_or(NONE)
}

impl Refusal {
    /// Whether a text was noted for the refusal. Without a text, only the error is known.
    pub fn has_text(&self) -> bool {
        !self.text.is_empty()
    }

    /// Returns the name of the code that was not registered. A long name is cut. `None` if there is no name.
    pub fn code(&self) -> Option<Cow<'_, str>> {
        let name = self.code.split(|&byte| byte == 0).next().filter(|name| !name.is_empty())?;
        Some(String::from_utf8_lossy(name))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut numbers = self.numbers.iter();
        let mut rest = self.text;
        while let Some((before, after)) = rest.split_once('{') {
            f.write_str(before)?;
            let number = numbers.next().copied().unwrap_or_default();
            rest = match after.strip_prefix("x}") {
                Some(after) => {
                    write!(f, "{number:#x}")?;
                    after
                }
                None => {
                    write!(f, "{number}")?;
                    after.strip_prefix('}').unwrap_or(after)
                }
            };
        }
        f.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_put_into_the_text() {
        note(9, "lines[{}].offset is {x}, the code has {} bytes", [3, 50, 12]);
        assert_eq!(tell(9).to_string(), "lines[3].offset is 0x32, the code has 12 bytes");
        assert_eq!(last().error, 9);
    }

    #[test]
    fn a_note_belongs_to_its_call() {
        panic_guard::guarded(|_| note(9, "something", [0; 3]));
        assert_eq!(panic_guard::guarded(|_| tell(9).to_string()).unwrap(), "");
        panic_guard::as_one_call(|| note(9, "something", [0; 3]));
        assert_eq!(panic_guard::as_one_call(|| tell(9).to_string()), "");
        let told = panic_guard::as_one_call(|| {
            note(9, "something", [0; 3]);
            tell(9).to_string()
        });
        assert_eq!(told, "something");
    }

    #[test]
    fn the_code_is_named() {
        let named = |body: &dyn Fn()| {
            panic_guard::as_one_call(|| {
                body();
                let told = tell(9);
                (told.to_string(), told.code().map(Cow::into_owned))
            })
        };
        let both = named(&|| {
            note(9, "something", [0; 3]);
            note_code(9, b"pixel");
        });
        assert_eq!(both, ("something".into(), Some("pixel".into())));
        assert_eq!(named(&|| note_code(9, &[b'x'; 100])), (String::new(), Some("x".repeat(NAME_MOST))));
        assert_eq!(named(&|| note_code(8, b"another error's")), (String::new(), None));
        let other = named(&|| {
            note(8, "another error's", [0; 3]);
            note_code(9, b"pixel");
        });
        assert_eq!(other, (String::new(), Some("pixel".into())));
    }

    #[test]
    fn a_note_belongs_to_its_error() {
        note(9, "something", [0; 3]);
        let (first, second) = (tell(5), tell(9));
        assert_eq!((first.to_string(), second.to_string()), (String::new(), String::new()));
        assert!(first.number < second.number && last().error == 9);
    }
}
