//! Applies single instructions, and checks the values that are known afterwards.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::aarch64::Aarch64;
use super::state::{State, Value};
use super::walk::{Flow, Machine};
use super::x86_64::X86_64;

/// The state after some instructions of a function. The instructions are not jumps.
fn after<M: Machine>(mut machine: M, code: &[u8]) -> State {
    let mut state = State::new(Rc::new(BTreeSet::from([-16, -32])));
    state.set(M::SP, Value::Cfa(-M::ENTRY));
    let mut at = 0;
    while at < code.len() as u64 {
        let (instruction, size, flow) = machine.decode(code, at).expect("an instruction");
        assert!(matches!(flow, Flow::Next | Flow::Call), "{flow:?}");
        machine.apply(&instruction, &mut state);
        at += size;
    }
    state
}

fn x86(code: &[u8]) -> State {
    after(X86_64::new(), code)
}

fn arm(words: &[u32]) -> State {
    after(Aarch64::new(), &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())
}

#[test]
fn x86_64_stack_pointer() {
    let sp = |code: &[u8]| x86(code).get(X86_64::SP);
    assert_eq!(sp(b"\x68\0\0\0\0"), Value::Cfa(-16), "push imm32");
    assert_eq!(sp(b"\xff\x37"), Value::Cfa(-16), "push [rdi]");
    assert_eq!(sp(b"\x8f\x07"), Value::Cfa(0), "pop [rdi]");
    assert_eq!(sp(b"\x9c"), Value::Cfa(-16), "pushfq");
    assert_eq!(sp(b"\x66\x50"), Value::Cfa(-10), "push ax");
    assert_eq!(sp(b"\xe8\0\0\0\0"), Value::Cfa(-16), "call to the next instruction");
    assert_eq!(sp(b"\xe8\0\x10\0\0"), Value::Cfa(-8), "call");
    assert_eq!(sp(b"\x48\x81\xec\0\x10\0\0"), Value::Cfa(-8 - 0x1000), "sub rsp, 0x1000");
    assert_eq!(sp(b"\x48\x8d\x64\x24\xe0"), Value::Cfa(-40), "lea rsp, [rsp-32]");
    assert_eq!(sp(b"\x48\x83\xe4\xc0"), Value::Unknown, "and rsp, -64");
    assert_eq!(sp(b"\x48\x29\xc4"), Value::Unknown, "sub rsp, rax");
    assert_eq!(sp(b"\x48\x8d\x64\xc4\x08"), Value::Unknown, "lea rsp, [rsp+rax*8+8]");
    assert_eq!(sp(b"\x48\x89\xe3\x48\x83\xe4\xc0\x48\x89\xdc"), Value::Cfa(-8), "by way of rbx");
}

#[test]
fn x86_64_memory() {
    let word = |code: &[u8], at| x86(code).slot(at);
    assert_eq!(word(b"\x53", -16), Some(Value::Callers(3)), "push rbx");
    assert_eq!(word(b"\x48\x89\x5c\x24\xf8", -16), Some(Value::Callers(3)), "mov [rsp-8], rbx");
    assert_eq!(word(b"\x53\xc6\x44\x24\x07\0", -16), Some(Value::Unknown), "its last byte overwritten");
    assert_eq!(word(b"\x53\xc6\x44\x24\x08\0", -16), Some(Value::Callers(3)), "the byte behind it overwritten");
    assert_eq!(word(b"\x53\x0f\x11\x44\x24\xf8", -16), Some(Value::Unknown), "by 16 bytes that begin before it");
    assert_eq!(word(b"\x53\x64\x48\x89\x04\x24", -16), Some(Value::Callers(3)), "mov fs:[rsp], rax");
    assert_eq!(word(b"\x90", -16), None, "nothing written");
    assert_eq!(word(b"\x89\x5c\x24\xf8", -16), Some(Value::Unknown), "mov [rsp-8], ebx");
    // Writes to half of a register, and to a register that callees may change.
    assert_eq!(x86(b"\x31\xdb").get(3), Value::Unknown, "xor ebx, ebx");
    assert_eq!(x86(b"\xb3\x01").get(3), Value::Unknown, "mov bl, 1");
    assert_eq!(x86(b"\xff\xd0").get(3), Value::Callers(3), "call rax");
    assert_eq!(x86(b"\xff\xd0").get(4), Value::Unknown, "call rax, and rsi");
    assert_eq!(x86(b"\x53\x31\xdb\x5b").get(3), Value::Callers(3), "push rbx; xor ebx, ebx; pop rbx");
}

#[test]
fn aarch64_stack_pointer() {
    let sp = |words: &[u32]| arm(words).get(Aarch64::SP);
    assert_eq!(sp(&[0xd104_03ff]), Value::Cfa(-256), "sub sp, sp, #256");
    assert_eq!(sp(&[0xd140_0bff]), Value::Cfa(-0x2000), "sub sp, sp, #2, lsl #12");
    assert_eq!(sp(&[0xa9be_7bfd]), Value::Cfa(-32), "stp x29, x30, [sp, #-32]!");
    assert_eq!(sp(&[0xf81f_0ffe]), Value::Cfa(-16), "str x30, [sp, #-16]!");
    assert_eq!(sp(&[0xf841_07fe]), Value::Cfa(16), "ldr x30, [sp], #16");
    assert_eq!(sp(&[0x6dbe_27e8]), Value::Cfa(-32), "stp d8, d9, [sp, #-32]!");
    assert_eq!(sp(&[0xcb20_63ff]), Value::Unknown, "sub sp, sp, x0");
    assert_eq!(sp(&[0x9100_03f3, 0xcb20_63ff, 0x9100_027f]), Value::Cfa(0), "by way of x19");
    assert_eq!(sp(&[0xeb20_63ff]), Value::Cfa(0), "cmp sp, x0");
    assert_eq!(sp(&[0xf100_041f]), Value::Cfa(0), "cmp x0, #1");
}

#[test]
fn aarch64_memory() {
    assert_eq!(arm(&[0xa9bf_7bfd]).slot(-16), Some(Value::Callers(29)), "stp x29, x30, [sp, #-16]!");
    assert_eq!(arm(&[0xa9bf_7bfd]).slot(-8), Some(Value::Callers(30)));
    assert_eq!(arm(&[0xa9bf_7bfd, 0x3900_03e0]).slot(-16), Some(Value::Unknown), "strb w0, [sp]");
    assert_eq!(arm(&[0xa9bf_7bfd, 0x3d80_03e0]).slot(-8), Some(Value::Unknown), "str q0, [sp]");
    assert_eq!(arm(&[0xa9bf_7bfd, 0xf900_0be0]).slot(-8), Some(Value::Callers(30)), "str x0, [sp, #16]");
    assert_eq!(arm(&[0xaa00_03f3]).get(19), Value::Callers(0), "mov x19, x0");
    assert_eq!(arm(&[0x2a00_03f3]).get(19), Value::Unknown, "mov w19, w0");
    assert_eq!(arm(&[0xaa13_03e0]).get(0), Value::Callers(19), "mov x0, x19");
    assert_eq!(arm(&[0xf940_0013]).get(19), Value::Unknown, "ldr x19, [x0]");
    assert_eq!(arm(&[0xa940_5013]).get(20), Value::Unknown, "ldp x19, x20, [x0]");
    assert_eq!(arm(&[0xf820_8013]).get(19), Value::Unknown, "swp x0, x19, [x0]");
    assert_eq!(arm(&[0x9a93_0013]).get(19), Value::Unknown, "csel x19, x0, x19, eq");
    assert_eq!(arm(&[0xd503_233f]).get(30), Value::Callers(30), "paciasp");
    assert_eq!(arm(&[0xd503_233f]).signed, Some(true), "paciasp");
    assert_eq!(arm(&[0xd503_237f, 0xd503_23ff]).signed, Some(false), "pacibsp; autibsp");
    assert_eq!(arm(&[0xd503_231f]).signed, None, "paciaz");
    assert_eq!(arm(&[0xd503_245f]).signed, Some(false), "bti c");
    assert_eq!(arm(&[0x9400_1000]).get(30), Value::Unknown, "bl");
    assert_eq!(arm(&[0x9400_1000]).get(19), Value::Callers(19), "bl, and x19");
    assert_eq!(arm(&[0xeb00_027f]).get(19), Value::Callers(19), "cmp x19, x0");
}
