//! The values of a thread's registers: now, or where a signal interrupted the thread.

#![cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")),
    allow(unreachable_code, unused_mut, unused_variables, reason = "on other processors nothing is known")
)]

use std::ffi::c_void;

/// Whether the functions below know the registers of this processor.
pub const ARE_KNOWN: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"));

/// The number of registers, from the DWARF register 0 on, that have a place.
pub const REGISTERS: usize = 32;

/// The values of the registers in a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    pub pc: u64,
    /// Whether `pc` is the address after a call. If not, a signal interrupted the frame at `pc`.
    pub is_return: bool,
    /// Bit `n` is set if the value of the DWARF register `n` is known.
    pub known: u32,
    /// Indexed by DWARF register numbers.
    pub values: [u64; REGISTERS],
}

impl Registers {
    pub fn get(&self, register: u16) -> Option<u64> {
        let is_known = self.known.checked_shr(register.into())? & 1 != 0;
        self.values.get(usize::from(register)).copied().filter(|_| is_known)
    }

    pub fn set(&mut self, register: u16, value: Option<u64>) {
        let Some(place) = self.values.get_mut(usize::from(register)) else { return };
        let bit = 1 << register;
        self.known = if value.is_some() { self.known | bit } else { self.known & !bit };
        *place = value.unwrap_or_default();
    }

    /// An address in the instruction that the frame executes. If the frame's last instruction is a call, `pc` may be the
    /// address of other code.
    pub fn code_addr(&self) -> u64 {
        self.pc.wrapping_sub(self.is_return.into())
    }
}

/// The registers of the calling function that the next functions may not change. `None` on other processors.
#[inline(always)]
pub fn here() -> Option<Registers> {
    let mut values = [0_u64; REGISTERS];
    #[cfg(target_arch = "x86_64")]
    let (pc, known) = {
        let pc: u64;
        // SAFETY: the instructions only read registers, and write to `values`.
        unsafe {
            std::arch::asm!(
                "mov [{values} + 3 * 8], rbx",
                "mov [{values} + 6 * 8], rbp",
                "mov [{values} + 7 * 8], rsp",
                "mov [{values} + 12 * 8], r12",
                "mov [{values} + 13 * 8], r13",
                "mov [{values} + 14 * 8], r14",
                "mov [{values} + 15 * 8], r15",
                "lea {pc}, [rip]",
                values = in(reg) values.as_mut_ptr(),
                pc = out(reg) pc,
                options(nostack, preserves_flags),
            );
        }
        (pc, 0xf0c8)
    };
    #[cfg(target_arch = "aarch64")]
    let (pc, known) = {
        let pc: u64;
        // SAFETY: as above.
        unsafe {
            std::arch::asm!(
                "stp x19, x20, [{values}, #19 * 8]",
                "stp x21, x22, [{values}, #21 * 8]",
                "stp x23, x24, [{values}, #23 * 8]",
                "stp x25, x26, [{values}, #25 * 8]",
                "stp x27, x28, [{values}, #27 * 8]",
                "stp x29, x30, [{values}, #29 * 8]",
                "mov {pc}, sp",
                "str {pc}, [{values}, #31 * 8]",
                "adr {pc}, .",
                values = in(reg) values.as_mut_ptr(),
                pc = out(reg) pc,
                options(nostack, preserves_flags),
            );
        }
        (pc, 0xfff8_0000)
    };
    #[cfg(target_arch = "riscv64")]
    let (pc, known) = {
        let pc: u64;
        // SAFETY: as above.
        unsafe {
            std::arch::asm!(
                "sd ra, 1 * 8({values})",
                "sd sp, 2 * 8({values})",
                "sd s0, 8 * 8({values})",
                "sd s1, 9 * 8({values})",
                "sd s2, 18 * 8({values})",
                "sd s3, 19 * 8({values})",
                "sd s4, 20 * 8({values})",
                "sd s5, 21 * 8({values})",
                "sd s6, 22 * 8({values})",
                "sd s7, 23 * 8({values})",
                "sd s8, 24 * 8({values})",
                "sd s9, 25 * 8({values})",
                "sd s10, 26 * 8({values})",
                "sd s11, 27 * 8({values})",
                "auipc {pc}, 0",
                values = in(reg) values.as_mut_ptr(),
                pc = out(reg) pc,
                options(nostack, preserves_flags),
            );
        }
        (pc, 0x0ffc_0306)
    };
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
    let (pc, known) = return None;
    Some(Registers { pc, is_return: false, known, values })
}

/// The registers in a signal handler's third argument, a `ucontext_t`. `None` on other processors.
///
/// # Safety
/// The kernel has passed `context` to a signal handler that has not returned yet.
pub unsafe fn of_signal(context: *const c_void) -> Option<Registers> {
    let mut values = [0_u64; REGISTERS];
    // SAFETY: the caller's promise.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    #[cfg(target_arch = "x86_64")]
    let (pc, known) = {
        let saved = &context.uc_mcontext.gregs;
        // The order of the DWARF registers 0 to 15 (psABI, figure 3.36).
        let order = [
            libc::REG_RAX,
            libc::REG_RDX,
            libc::REG_RCX,
            libc::REG_RBX,
            libc::REG_RSI,
            libc::REG_RDI,
            libc::REG_RBP,
            libc::REG_RSP,
            libc::REG_R8,
            libc::REG_R9,
            libc::REG_R10,
            libc::REG_R11,
            libc::REG_R12,
            libc::REG_R13,
            libc::REG_R14,
            libc::REG_R15,
        ];
        values.iter_mut().zip(order).for_each(|(value, place)| *value = saved[place as usize] as u64);
        (saved[libc::REG_RIP as usize] as u64, 0xffff)
    };
    #[cfg(target_arch = "aarch64")]
    let (pc, known) = {
        let saved = &context.uc_mcontext;
        values.iter_mut().zip(&saved.regs).for_each(|(value, saved)| *value = *saved);
        values[31] = saved.sp;
        (saved.pc, u32::MAX)
    };
    #[cfg(target_arch = "riscv64")]
    let (pc, known) = {
        let saved = &context.uc_mcontext.__gregs;
        values.iter_mut().zip(saved).for_each(|(value, saved)| *value = *saved as u64);
        values[0] = 0;
        (saved[0] as u64, u32::MAX)
    };
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
    let (pc, known) = return None;
    Some(Registers { pc, is_return: false, known, values })
}
