//! Reads the attributes that the host has given to memory (mlock, madvise, mbind, protection keys), and copies these attributes
//! to a new mapping that replaces the memory. A new mapping starts without any of the attributes.

/// The attributes of a mapping. The default value means that the mapping has no attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Bit N is set if the mapping has the advice of entry N of `ADVICE`.
    advice: u16,
    is_locked: bool,
    /// Whether the mapping has an attribute that this library cannot give to a mapping of a file.
    is_stuck: bool,
    key: u32,
}

/// The name that `VmFlags` shows for each kind of advice (linux Documentation/filesystems/proc.rst), and its number
/// (madvise(2)).
const ADVICE: [(&str, i32); 7] = [
    ("dc", libc::MADV_DONTFORK),
    ("dd", libc::MADV_DONTDUMP),
    ("hg", libc::MADV_HUGEPAGE),
    ("nh", libc::MADV_NOHUGEPAGE),
    ("mg", libc::MADV_MERGEABLE),
    ("rr", libc::MADV_RANDOM),
    ("sr", libc::MADV_SEQUENTIAL),
];
/// The names in `VmFlags` for `MADV_WIPEONFORK` and for the three modes of userfaultfd(2).
const STUCK: [&str; 4] = ["wf", "um", "uw", "ui"];

/// The crate libc lacks this number for two architectures (linux arch/s390/kernel/syscalls/syscall.tbl and
/// arch/powerpc/kernel/syscalls/syscall.tbl).
#[cfg(target_arch = "s390x")]
const PKEY_MPROTECT: libc::c_long = 384;
#[cfg(target_arch = "powerpc64")]
const PKEY_MPROTECT: libc::c_long = 386;
#[cfg(not(any(target_arch = "s390x", target_arch = "powerpc64")))]
const PKEY_MPROTECT: libc::c_long = libc::SYS_pkey_mprotect;

impl Attributes {
    /// Whether a mapping of a file can have all these attributes.
    pub fn suit_a_file(&self) -> bool {
        !self.is_stuck
    }

    /// Gives these attributes to memory without attributes. An attribute that the kernel refuses is skipped.
    pub fn give(&self, addr: u64, len: u64, protection: i32) {
        if *self == Attributes::default() {
            return;
        }
        let (at, len) = (addr as *mut libc::c_void, len as usize);
        let advice = ADVICE.iter().enumerate().filter(|(number, _)| self.advice & 1 << number != 0);
        // SAFETY: these calls do not change the content of memory. The host itself has requested each of these attributes.
        unsafe {
            advice.for_each(|(_, &(_, advice))| _ = libc::madvise(at, len, advice));
            if self.key != 0 {
                libc::syscall(PKEY_MPROTECT, at, len, protection, self.key);
            }
            if self.is_locked {
                libc::mlock(at, len);
            }
        }
    }

    /// Adds the NUMA policy of the memory at an address. `/proc/self/smaps` does not show this policy.
    pub fn add_policy(&mut self, addr: u64) {
        self.is_stuck |= has_policy(addr);
    }

    /// Adds the attributes in one line of `/proc/self/smaps`.
    pub fn add(&mut self, line: &str) {
        if let Some(key) = line.strip_prefix("ProtectionKey:") {
            self.key = key.trim().parse().unwrap_or(0);
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            for flag in flags.split_ascii_whitespace() {
                let advice = ADVICE.iter().position(|(name, _)| *name == flag);
                self.advice |= advice.map_or(0, |number| 1 << number);
                self.is_locked |= flag == "lo";
                self.is_stuck |= STUCK.contains(&flag);
            }
        }
    }
}

/// Whether the host has chosen the NUMA nodes for the memory at an address (mbind(2)).
fn has_policy(addr: u64) -> bool {
    const OF_ADDRESS: libc::c_ulong = 2;
    let mut policy: libc::c_int = 0;
    let none = std::ptr::null_mut::<libc::c_ulong>();
    // SAFETY: the kernel writes only to `policy`. A kernel without NUMA, or a sandbox, refuses the call.
    let asked = unsafe {
        libc::syscall(libc::SYS_get_mempolicy, &raw mut policy, none, 0 as libc::c_ulong, addr as *mut u8, OF_ADDRESS)
    };
    asked == 0 && policy != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel() {
        let of = |lines: &[&str]| {
            let mut found = Attributes::default();
            lines.iter().for_each(|line| found.add(line));
            found
        };
        let plain = of(&["Locked:   4 kB\n", "ProtectionKey:         0\n", "VmFlags: rd wr ex mr mw me ac sd \n"]);
        assert!(plain == Attributes::default() && plain.suit_a_file());
        let kept = of(&["ProtectionKey:         3\n", "VmFlags: rd ex dc rr\n"]);
        assert!(kept == Attributes { advice: 0b10_0001, key: 3, ..plain } && kept.suit_a_file());
        for flag in ["wf", "um", "uw", "ui"] {
            assert!(!of(&[&format!("VmFlags: rd {flag} ac\n")]).suit_a_file(), "{flag}");
        }
    }
}
