//! Makes trampolines: functions of the library that call a function of the host under the name of registered code.

use std::ptr;

use crate::api::code::{Bytes, Code};
use crate::api::error::{Error, Result};
use crate::api::limits::CODE_GAP_SIZE;
use crate::api::options::Sinks;
use crate::code_alloc::Kind;
use crate::format::arch::NATIVE;
use crate::format::trampoline::{Trampoline, WORDS_MAX};
use crate::session::handle::Ref;
use crate::sys::code_memory;

impl Ref {
    /// Makes a trampoline to `target`, which gets `words` words of stack arguments, and registers the trampoline under the name
    /// of `code`. Returns the address of the trampoline, or `target` if the library cannot make code for this architecture.
    pub fn trampoline(&self, target: u64, words: u32, code: &Code<'_>) -> Result<u64> {
        if target == 0 {
            return Err(Error::Null.because("the target of a trampoline is NULL", []));
        }
        if words > WORDS_MAX {
            let text = "a trampoline passes {} words of stack arguments: at most {} are allowed";
            return Err(Error::TooLarge.because(text, [words.into(), WORDS_MAX.into()]));
        }
        let Some(made) = NATIVE.and_then(|arch| Trampoline::new(arch, target, words)) else {
            return self.still_open(target);
        };
        let bytes = made.bytes();
        // In a region, perf finds the unwind tables in the region's file, and not in the jitdump.
        let sinks = self.shared.status.sinks();
        let gap = sinks.has(Sinks::JITDUMP) && !sinks.has(Sinks::REGION);
        let size = bytes.len() as u64 + if gap { CODE_GAP_SIZE } else { 0 };
        let piece = self.alloc_for_trampoline(size, Kind { target, words, gap })?;
        if piece.write != piece.exec {
            // SAFETY: the piece has room for the bytes, and nobody else knows of it. A thread cannot run code in it yet.
            unsafe {
                ptr::copy_nonoverlapping(bytes.as_ptr(), piece.write as *mut u8, bytes.len());
                code_memory::clear_instruction_cache(piece.exec, bytes.len() as u64);
            }
        }
        let text = made.code();
        let (addr, size) = (piece.exec, text.len() as u64);
        let code = Code { addr, size, bytes: Bytes::Here(text), unwind: made.unwind(), gap, ..*code };
        let registered = self.register(&code, None);
        let known = registered.and_then(|_| if code.more { Ok(()) } else { self.known() });
        known.map(|()| addr).inspect_err(|_| {
            // The caller does not get the trampoline, so it is freed and, if it was registered, unregistered.
            let _ = self.free_trampoline(addr);
        })
    }
}
