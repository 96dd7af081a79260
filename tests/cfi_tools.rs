//! Unwind tables as other people's programs read them: `readelf`, `llvm-dwarfdump` and `llvm-readobj` on an ELF file laid
//! out as the one that `perf inject --jit` makes of each function (linux tools/perf/util/genelf.c), and tables made from
//! what gcc wrote.

use std::path::PathBuf;
use std::process::Command;

use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

use crate::support::genelf::{self, TEXT};
use crate::support::readelf::{augmentation, lines_from, negations, rows as readelf_rows, tool, without_kept};
use crate::support::{run, scratch_dir};
use jitsym::format::arch::Arch;
use jitsym::format::cfi::{encode, Tables};
use jitsym::{FixedFrame, FramePointer, SavedRegister, SigningKey, Unwind, UnwindRow};

/// An ELF file of tables for code that does not matter.
fn elf(arch: Arch, tables: &Tables, code_size: u64, name: &str) -> PathBuf {
    let machine = arch.abi().elf_machine as u16;
    let path = scratch_dir("elf").join(name);
    let (eh_frame, hdr) = tables.bytes.split_at(tables.eh_frame_size());
    std::fs::write(&path, genelf::object(machine, &vec![0; code_size as usize], eh_frame, hdr, name)).expect("written");
    path
}

/// Checks the rows of the only FDE in both tools' words, and the header's table.
fn check(arch: Arch, unwind: &Unwind, code_size: u64, name: &str, readelf: &[&str], dwarfdump: &[&str]) {
    let tables = encode(arch, unwind, 0, code_size).expect("encoded").expect("tables");
    let path = elf(arch, &tables, code_size, name);

    let end = TEXT + code_size;
    let output = tool("readelf", "--debug-dump=frames-interp", &path);
    let found = lines_from(&output, &format!("FDE cie=00000000 pc={TEXT:016x}..{end:016x}"));
    let rows = without_kept(found.into_iter().take_while(|line| !line.is_empty()).collect());
    assert_eq!(rows, readelf, "{output}");
    assert!(output.contains("ZERO terminator"), "{output}");

    let output = tool("llvm-dwarfdump", "--eh-frame", &path);
    let found = lines_from(&output, &format!("FDE cie=00000000 pc={TEXT:08x}...{end:08x}"));
    let rows = found.iter().filter(|line| line.starts_with("0x"));
    let rows: Vec<_> = rows.map(|line| line.replace("RBX=same, ", "").replace(": RBX=same", "")).collect();
    assert_eq!(rows, dwarfdump, "{output}");

    let output = tool("llvm-readobj", "--unwind", &path);
    let fde = TEXT + code_size.next_multiple_of(8) + 24;
    for part in ["fde_count: 1", &format!("initial_location: 0x{TEXT:x}"), &format!("address: 0x{fde:x}")] {
        assert!(output.lines().any(|line| line.trim() == part), "{part} in {output}");
    }
}

fn saved<const N: usize>(list: [(u32, i32); N]) -> [SavedRegister; N] {
    list.map(|(reg, offset)| SavedRegister { reg, offset })
}

#[test]
fn frame_pointer() {
    // MoarVM's frame.
    let saved = saved([(14, -24), (13, -32), (3, -40)]);
    let fp = FramePointer { epilogue_begin: 90, epilogue_end: 91, saved: &saved, saved_from: 23, ..Default::default() };
    check(
        Arch::X86_64,
        &Unwind::FramePointer(fp),
        100,
        "frame-pointer",
        &[
            "LOC CFA rbx rbp r13 r14 ra",
            "0000000000000080 rsp+8 u u u u c-8",
            "0000000000000081 rsp+16 u c-16 u u c-8",
            "0000000000000084 rbp+16 u c-16 u u c-8",
            "0000000000000097 rbp+16 c-40 c-16 c-32 c-24 c-8",
            "00000000000000da rsp+8 u u u u c-8",
            "00000000000000db rbp+16 c-40 c-16 c-32 c-24 c-8",
        ],
        &[
            "0x80: CFA=RSP+8: RIP=[CFA-8]",
            "0x81: CFA=RSP+16: RBP=[CFA-16], RIP=[CFA-8]",
            "0x84: CFA=RBP+16: RBP=[CFA-16], RIP=[CFA-8]",
            "0x97: CFA=RBP+16: RBX=[CFA-40], RBP=[CFA-16], R13=[CFA-32], R14=[CFA-24], RIP=[CFA-8]",
            "0xda: CFA=RSP+8: RIP=[CFA-8]",
            "0xdb: CFA=RBP+16: RBX=[CFA-40], RBP=[CFA-16], R13=[CFA-32], R14=[CFA-24], RIP=[CFA-8]",
        ],
    );
}

#[test]
fn frame_pointer_elsewhere() {
    let unwind = Unwind::FramePointer(FramePointer { epilogue_begin: 32, ..FramePointer::default() });
    check(
        Arch::Aarch64,
        &unwind,
        36,
        "frame-pointer-aarch64",
        &[
            "LOC CFA x29 ra",
            "0000000000000080 sp+0 u u",
            "0000000000000084 sp+16 c-16 c-8",
            "0000000000000088 x29+16 c-16 c-8",
            "00000000000000a0 sp+0 u u",
        ],
        &[
            "0x80: CFA=WSP",
            "0x84: CFA=WSP+16: W29=[CFA-16], W30=[CFA-8]",
            "0x88: CFA=W29+16: W29=[CFA-16], W30=[CFA-8]",
            "0xa0: CFA=WSP",
        ],
    );
    check(
        Arch::Riscv64,
        &unwind,
        36,
        "frame-pointer-riscv64",
        &[
            "LOC CFA ra s0",
            "0000000000000080 sp+0 u u",
            "000000000000008c sp+16 u u",
            "0000000000000090 s0+0 c-8 c-16",
            "00000000000000a0 sp+0 u u",
        ],
        &["0x80: CFA=X2", "0x8c: CFA=X2+16", "0x90: CFA=X8: X1=[CFA-8], X8=[CFA-16]", "0xa0: CFA=X2"],
    );
}

#[test]
fn fixed_frame() {
    let saved = saved([(6, -16), (3, -24)]);
    check(
        Arch::X86_64,
        &Unwind::FixedFrame(FixedFrame::new(96, &saved)),
        35,
        "fixed-frame",
        &["LOC CFA rbx rbp ra", "0000000000000080 rsp+96 c-24 c-16 c-8"],
        &["0x80: CFA=RSP+96: RBX=[CFA-24], RBP=[CFA-16], RIP=[CFA-8]"],
    );
}

/// What the assembler writes for the same frame, with a directive after each instruction that changes it, gives the same rows.
#[test]
fn fixed_frame_as_assembled() {
    const X86_64: &str = "\
        .text\nframe: .cfi_startproc
        push %rbp\n .cfi_def_cfa_offset 16\n .cfi_offset %rbp, -16
        mov %rsp, %rbp
        sub $0x100, %rsp\n .cfi_def_cfa_offset 0x110
        mov %r14, -8(%rbp)\n mov %r13, -16(%rbp)
        mov %rbx, -24(%rbp)\n .cfi_offset %r14, -24\n .cfi_offset %r13, -32\n .cfi_offset %rbx, -40
        nop
        mov -24(%rbp), %rbx\n mov -16(%rbp), %r13\n mov -8(%rbp), %r14
        mov %rbp, %rsp\n .cfi_remember_state
        .cfi_def_cfa_offset 16\n .cfi_restore %r14\n .cfi_restore %r13\n .cfi_restore %rbx
        pop %rbp\n .cfi_def_cfa_offset 8\n .cfi_restore %rbp
        ret\n .cfi_restore_state
        nop\n .cfi_endproc\n";
    const AARCH64: &str = "\
        .text\nframe: .cfi_startproc
        stp x29, x30, [sp, #-16]!\n .cfi_def_cfa_offset 16\n .cfi_offset 29, -16\n .cfi_offset 30, -8
        mov x29, sp
        sub sp, sp, #256\n .cfi_def_cfa_offset 272
        str x19, [sp, #8]\n .cfi_offset 19, -264
        nop
        ldr x19, [sp, #8]
        mov sp, x29\n .cfi_remember_state\n .cfi_def_cfa_offset 16\n .cfi_restore 19
        ldp x29, x30, [sp], #16\n .cfi_def_cfa_offset 0\n .cfi_restore 29\n .cfi_restore 30
        ret\n .cfi_restore_state
        nop\n .cfi_endproc\n";
    let (moar, one) = (saved([(14, -24), (13, -32), (3, -40)]), saved([(19, -264)]));
    let in_x86_64 = FixedFrame {
        pushed: 1,
        sp_set: 11,
        saved_from: 23,
        sp_reset: 39,
        epilogue_begin: 40,
        epilogue_end: 41,
        ..FixedFrame::new(0x110, &moar)
    };
    let in_aarch64 = FixedFrame {
        pushed: 4,
        sp_set: 12,
        saved_from: 16,
        sp_reset: 28,
        epilogue_begin: 32,
        epilogue_end: 36,
        ..FixedFrame::new(272, &one)
    };
    for (target, arch, source, frame, size) in [
        ("x86_64-linux-gnu", Arch::X86_64, X86_64, in_x86_64, 42),
        ("aarch64-linux-gnu", Arch::Aarch64, AARCH64, in_aarch64, 40),
    ] {
        as_assembled(target, arch, source, &Unwind::FixedFrame(frame), size, target);
    }
}

/// Assembles a source, and compares the rows of a description with those of the assembler. Returns both files.
fn as_assembled(target: &str, arch: Arch, source: &str, unwind: &Unwind, size: u64, name: &str) -> (PathBuf, PathBuf) {
    let dir = scratch_dir(format!("assembled-{name}"));
    let (text, object) = (dir.join("frame.s"), dir.join("frame.o"));
    std::fs::write(&text, source).expect("write the source");
    // Each clang assembles for all processors.
    run(Command::new("clang").arg(format!("--target={target}")).arg("-c").arg(&text).arg("-o").arg(&object));
    let tables = encode(arch, unwind, 0, size).expect("encoded").expect("tables");
    let ours = elf(arch, &tables, size, &format!("assembled-{name}.o"));
    let rows = readelf_rows(&ours, TEXT);
    assert!(rows.len() >= 7, "{rows:?}");
    assert_eq!(rows, readelf_rows(&object, 0), "{name}");
    (ours, object)
}

/// The assembler writes the same for a frame whose return address is signed: where the signing begins and ends, and the key.
#[test]
fn signed_as_assembled() {
    const SOURCE: &str = "\
        .text\nframe: .cfi_startproc
        MARK
        hint #SIGN\n .cfi_negate_ra_state
        stp x29, x30, [sp, #-32]!\n .cfi_def_cfa_offset 32\n .cfi_offset 29, -32\n .cfi_offset 30, -24
        mov x29, sp
        CFA
        str x19, [sp, #16]\n .cfi_offset 19, -16
        ldr x19, [sp, #16]
        ldp x29, x30, [sp], #32\n .cfi_remember_state\n .cfi_def_cfa 31, 0
        .cfi_restore 19\n .cfi_restore 29\n .cfi_restore 30
        hint #CHECK\n .cfi_negate_ra_state
        ret\n .cfi_restore_state
        nop\n .cfi_endproc\n";
    let saved = saved([(19, -16)]);
    for (key, mark, sign, check) in [(SigningKey::A, "", "25", "29"), (SigningKey::B, ".cfi_b_key_frame", "27", "31")] {
        let (saved_from, epilogue_begin, epilogue_end, signed) = (16, 24, 32, Some(key));
        let fp = FramePointer {
            cfa_offset: 32,
            saved: &saved,
            saved_from,
            epilogue_begin,
            epilogue_end,
            signed,
            ..FramePointer::default()
        };
        let fixed = FixedFrame {
            pushed: 8,
            sp_set: 8,
            saved_from,
            epilogue_begin,
            epilogue_end,
            signed,
            ..FixedFrame::new(32, &saved)
        };
        for (name, unwind, cfa) in [
            ("frame-pointer", Unwind::FramePointer(fp), ".cfi_def_cfa_register 29"),
            ("fixed-frame", Unwind::FixedFrame(fixed), ""),
        ] {
            let source = SOURCE.replace("MARK", mark).replace("SIGN", sign).replace("CHECK", check);
            let (source, name) = (source.replace("CFA\n", &format!("{cfa}\n")), format!("signed-{name}-{key:?}"));
            let (ours, theirs) = as_assembled("aarch64-linux-gnu", Arch::Aarch64, &source, &unwind, 36, &name);
            assert_eq!(negations(&ours, TEXT), [4, 28], "{name}");
            assert_eq!(negations(&theirs, 0), [4, 28], "{name}");
            assert_eq!(augmentation(&ours, TEXT), augmentation(&theirs, 0), "{name}");
            assert_eq!(augmentation(&ours, TEXT).contains('B'), key == SigningKey::B, "{name}");
        }
    }
}

#[test]
fn rows() {
    let (saved, fewer) = (saved([(6, -16), (12, -88)]), saved([(6, -16)]));
    let row = |offset, cfa_offset, saved| UnwindRow { offset, cfa_register: 7, cfa_offset, saved };
    check(
        Arch::X86_64,
        &Unwind::Rows(&[row(0, 96, &saved), row(4, 192, &saved), row(1000, 192, &fewer), row(1090, 8, &[])]),
        1111,
        "rows",
        &[
            "LOC CFA rbp r12 ra",
            "0000000000000080 rsp+96 c-16 c-88 c-8",
            "0000000000000084 rsp+192 c-16 c-88 c-8",
            "0000000000000468 rsp+192 c-16 u c-8",
            "00000000000004c2 rsp+8 u u c-8",
        ],
        &[
            "0x80: CFA=RSP+96: RBP=[CFA-16], R12=[CFA-88], RIP=[CFA-8]",
            "0x84: CFA=RSP+192: RBP=[CFA-16], R12=[CFA-88], RIP=[CFA-8]",
            "0x468: CFA=RSP+192: RBP=[CFA-16], RIP=[CFA-8]",
            "0x4c2: CFA=RSP+8: RIP=[CFA-8]",
        ],
    );
}

/// Functions for which gcc writes many kinds of rows, two of them with a personality routine.
const SOURCE: &str = r#"
void sink(void *, int);
static void cleanup(int *p) { sink(p, 0); }
int leaf(int a) { return a * 3; }
int keeps(int a, int b) { sink(&a, b); sink(&b, a); if (a) return b; sink(0, b); return a + b; }
void large(int a) { char big[5000]; sink(big, a); sink(big + 1, a); }
void grows(int n, int m) { while (n--) { char *p = __builtin_alloca(n); sink(p, m); } }
int cleans(int a) { int b __attribute__((cleanup(cleanup))) = a; sink(&b, a); return a; }
int cleans_early(int a) {
  int b __attribute__((cleanup(cleanup))) = a;
  if (a > 3) { sink(&b, 1); return 4; }
  sink(&b, a); sink(0, a); return a + b;
}
"#;

#[test]
fn what_gcc_wrote() {
    what_a_compiler_wrote("gcc", Arch::X86_64, &[&["-Os", "-mno-red-zone"]]);
}

/// Return addresses that are signed with either key included.
#[test]
fn what_gcc_wrote_for_aarch64() {
    let signed = [&["-Os", "-mbranch-protection=standard"][..], &["-O2", "-mbranch-protection=pac-ret+b-key"]];
    what_a_compiler_wrote("aarch64-linux-gnu-gcc", Arch::Aarch64, &signed);
}

fn what_a_compiler_wrote(compiler: &str, arch: Arch, more: &[&[&str]]) {
    let dir = scratch_dir(compiler);
    let (source, library) = (dir.join("functions.c"), dir.join("functions.so"));
    std::fs::write(&source, SOURCE).expect("write the source");
    let mut signed = 0;
    for flags in [&["-O2"][..], &["-O0"], &["-O2", "-fno-omit-frame-pointer"]].iter().chain(more) {
        let mut gcc = Command::new(compiler);
        gcc.args(["-shared", "-fPIC", "-fexceptions", "-g0"]).args(*flags).arg(&source).arg("-o").arg(&library);
        run(&mut gcc);

        let file = std::fs::read(&library).expect("read the library");
        let file = object::File::parse(&*file).expect("an ELF file");
        let section = file.section_by_name(".eh_frame").expect(".eh_frame");
        let unwind = Unwind::EhFrame { bytes: section.data().expect("its bytes"), addr: section.address() };
        assert!(tool("readelf", "--debug-dump=frames", &library).contains("\"zPLR"));

        let mut pieces: Vec<(String, u64, u64)> = file
            .dynamic_symbols()
            .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
            .map(|symbol| (symbol.name().expect("a name").to_owned(), symbol.address(), symbol.size()))
            .collect();
        assert_eq!(pieces.len(), 6, "{pieces:?}");
        if arch == Arch::X86_64 {
            // Its CFA is an expression. Elsewhere it has no tables.
            let plt = file.section_by_name(".plt").expect(".plt");
            pieces.push(("plt".into(), plt.address(), plt.size()));
        }

        for (name, addr, size) in pieces {
            let tables = encode(arch, &unwind, addr, size).expect("encoded").expect("tables");
            assert!(!tables.bytes.windows(2).any(|bytes| bytes == b"zP"), "a personality routine in {name}");
            let ours = elf(arch, &tables, size, &format!("{compiler}-{name}"));
            let rows = readelf_rows(&ours, TEXT);
            // readelf prints no rows for entries without instructions.
            assert!(rows.len() >= 2 || name == "leaf", "{name} {flags:?}: {rows:?}");
            assert_eq!(rows, readelf_rows(&library, addr), "{name} {flags:?}");
            assert_eq!(negations(&ours, TEXT), negations(&library, addr), "{name} {flags:?}");
            let key = |path, at| augmentation(path, at).contains('B');
            assert_eq!(key(&ours, TEXT), key(&library, addr), "{name} {flags:?}");
            signed += usize::from(key(&ours, TEXT)) + negations(&ours, TEXT).len();
        }
    }
    assert_eq!(signed > 0, arch == Arch::Aarch64);
}
