//! What a registration costs the calling thread, in instructions: valgrind counts them, so a slow or busy machine
//! changes nothing. Time is measured by `cargo bench`, on a machine that has nothing else to do.

use crate::support::*;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

/// Calls between two measurements: enough for several chunks, so that changing them is in the average.
const CALLS: u64 = 4000;

/// What is registered: with frame-pointer unwinding and the bytes at hand.
#[derive(Clone, Copy, Debug)]
struct Code {
    size: u64,
    lines: u64,
    name_len: u64,
    /// Where it begins in the source.
    file: &'static str,
}

const PLAIN: Code = Code { size: 64, lines: 0, name_len: 50, file: "" };

/// Instructions that one call may take on x86-64, a twentieth above what was measured (rustc 1.95, glibc 2.36,
/// valgrind 3.19): room for another compiler or C library, not for another loop. Lower them when calls
/// get cheaper. Frame pointers take 4 % of them.
const BOUNDS: &[(Code, u64)] = &[
    (PLAIN, 593),                       // measured: 563
    (Code { size: 512, ..PLAIN }, 714), // measured: 677
    (Code { lines: 2, ..PLAIN }, 1207), // measured: 1149
    // Of which a name and a line table that the caller makes take 1000.
    (Code { file: "/guest/a_source_file", ..PLAIN }, 1728), // measured: 1619
];
/// glibc has a `memcpy` for each kind of processor. This one every x86-64 processor has, so that all make the same instructions.
const EVERY_PROCESSOR: &str = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-AVX2_Usable,-AVX,-AVX_Fast_Unaligned_Load,\
                               -SSSE3,-ERMS,-FSRM";
/// The same for a session without any sink.
const BOUND_OFF: u64 = 12; // measured: 11

/// Runs the program under callgrind, which counts only what happens inside of jitsym_register: the writer's thread is
/// never there. Returns the instructions, and the file that says where they went.
fn count(program: &Path, calls: u64, code: Code, environment: &[(&str, &str)]) -> (u64, PathBuf) {
    let dir = scratch_dir(format!("files-{calls}"));
    let mode = environment.iter().map(|(_, value)| *value).collect::<String>();
    let what = format!("{}-{}-{}-{}", code.size, code.lines, code.name_len, code.file.len());
    let profile = scratch_dir("profiles").join(format!("{what}-{calls}{mode}"));
    let mut command = Command::new("valgrind");
    command.args(["-q", "--tool=callgrind", "--fair-sched=yes", "--toggle-collect=jitsym_register"]);
    command.arg(format!("--callgrind-out-file={}", profile.display())).arg(program).arg(&dir);
    command.args([calls, code.size, code.lines, code.name_len, 0].map(|number| number.to_string())).arg(code.file);
    // Functions of other libraries are looked up at the start, and not in the first call of each.
    command
        .env_remove("JITSYM")
        .env_remove("JITDUMP_USE_ARCH_TIMESTAMP")
        .env("JITSYM_VALGRIND", "0")
        .env("LD_BIND_NOW", "1")
        .env("GLIBC_TUNABLES", EVERY_PROCESSOR)
        .envs(environment.iter().copied());
    let output = run(&mut command);
    assert_eq!(stdout(&output), "ok\n", "{}", describe(&command, &output));
    checker::assert_all_sound(&dir, &[]);
    std::fs::remove_dir_all(&dir).expect("remove the files");
    let text = std::fs::read_to_string(&profile).expect("profile");
    let totals = text.lines().find_map(|line| line.strip_prefix("totals: "));
    (totals.expect("totals").trim().parse().expect("number"), profile)
}

/// Instructions of one call, without what only the first ones do.
fn count_per_call(program: &Path, code: Code, environment: &[(&str, &str)]) -> (u64, PathBuf) {
    // Side by side: valgrind takes seconds, and one processor for each.
    let ((once, _), (twice, profile)) = thread::scope(|scope| {
        let once = scope.spawn(|| count(program, CALLS, code, environment));
        let twice = count(program, 2 * CALLS, code, environment);
        (once.join().expect("count"), twice)
    });
    (twice.checked_sub(once).expect("more calls, more instructions").div_ceil(CALLS), profile)
}

#[test]
fn instructions_of_a_registration() {
    let program = compile("gcc", &["c-tests/cost/cost.c"], Link::Shared, &["-O1"], "cost");
    let check = |code: Code, bound: u64, environment: &[(&str, &str)]| {
        let (measured, profile) = count_per_call(&program, code, environment);
        println!("{code:?} {environment:?}: {measured} of {bound}");
        // The control: what is counted is more than the call itself, also where next to nothing is done.
        assert!(measured > 5, "{measured} instructions: jitsym_register was not seen");
        // Compilers and C libraries for other processors differ; there the numbers are only printed.
        assert!(
            measured <= bound || cfg!(not(target_arch = "x86_64")),
            "jitsym_register takes {measured} instructions for {code:?} {environment:?}, and may take {bound}. Where \
             they go: `callgrind_annotate --show-percs=no {0}`; compare with the same from before. If they are \
             worth it, raise the bound in tests/cost.rs.",
            profile.display()
        );
        measured
    };
    let all: Vec<u64> = BOUNDS.iter().map(|&(code, bound)| check(code, bound, &[])).collect();
    // The control: a call that does more is seen to do more, and would be refused.
    assert!(all[0] < all[1] && all[1] < all[2], "{all:?}");
    let (more, _) = count_per_call(&program, Code { lines: 32, ..PLAIN }, &[]);
    assert!(more > BOUNDS[0].1, "32 lines take {more} instructions");

    // Nothing is looked at, so it is the same whatever is registered.
    let off = [("JITSYM", "off")];
    let nothing = check(PLAIN, BOUND_OFF, &off);
    assert_eq!(nothing, check(Code { size: 512, lines: 2, ..PLAIN }, BOUND_OFF, &off));
}

/// The same for all other threads, which is the writer's: with map and jitdump, with objects for debuggers besides, and for code in a
/// region, without lines and with four.
const BOUNDS_WRITER: &[(Code, Place, u64)] = &[
    (PLAIN, Place::Anywhere, 1345), // measured: 1288
    // In few passes more objects are merged: of the library for which 2763 were measured in many, this program counted 2865.
    (PLAIN, Place::Objects, 3040),                     // measured: 2898
    (PLAIN, Place::Region, 2690),                      // measured: 2591
    (Code { lines: 4, ..PLAIN }, Place::Region, 5225), // measured: 5055
];

/// Where code lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Anywhere,
    /// Anywhere, and debuggers are to find it.
    Objects,
    Region,
}

/// The instructions of all threads but the first.
fn count_others(program: &Path, calls: u64, code: Code, place: Place) -> u64 {
    let of = format!("{calls}-{}-{place:?}", code.lines);
    let (dir, profiles) = (scratch_dir(format!("writer-{of}")), scratch_dir(format!("writer-profiles-{of}")));
    let mut command = Command::new("valgrind");
    command.args(["-q", "--tool=callgrind", "--fair-sched=yes", "--separate-threads=yes"]);
    command.arg(format!("--callgrind-out-file={}", profiles.join("of").display())).arg(program).arg(&dir);
    let in_region = u64::from(place == Place::Region);
    command
        .args([calls, code.size, code.lines, code.name_len, in_region].map(|number| number.to_string()))
        .arg(code.file);
    command.env_remove("JITSYM").env_remove("JITDUMP_USE_ARCH_TIMESTAMP").env("GLIBC_TUNABLES", EVERY_PROCESSOR);
    command.env("JITSYM_GDB", if place == Place::Objects { "1" } else { "0" });
    let output = run(command.env("JITSYM_VALGRIND", "0"));
    assert_eq!(stdout(&output), "ok\n", "{}", describe(&command, &output));
    checker::assert_all_sound(&dir, &[]);
    let total = |path: PathBuf| -> u64 {
        let text = std::fs::read_to_string(path).expect("profile");
        let totals = text.lines().find_map(|line| line.strip_prefix("totals: ")).unwrap_or("0");
        totals.trim().parse().expect("number")
    };
    let files = std::fs::read_dir(&profiles).expect("profiles").map(|entry| entry.expect("profile").path());
    files.filter(|path| !["of", "of-01"].iter().any(|first| path.ends_with(first))).map(total).sum()
}

#[test]
fn instructions_of_the_writer() {
    let program = compile("gcc", &["c-tests/cost/cost.c"], Link::Shared, &["-O1"], "cost-writer");
    for &(code, place, bound) in BOUNDS_WRITER {
        // There are objects for a limited number of functions.
        let calls = if place == Place::Objects { [CALLS / 2, CALLS] } else { [2 * CALLS, 4 * CALLS] };
        let counted = calls.map(|calls| count_others(&program, calls, code, place));
        let more = counted[1].checked_sub(counted[0]).expect("more calls, more instructions");
        let measured = more / (calls[1] - calls[0]);
        println!("the writer, {code:?} {place:?}: {measured} of {bound}");
        assert!(measured > 300, "{measured} instructions: the writer was not seen");
        assert!(
            measured <= bound || cfg!(not(target_arch = "x86_64")),
            "the writer takes {measured} instructions for a record of {code:?} {place:?}, and may take {bound}"
        );
    }
}

#[test]
fn stack_of_each_call() {
    let program = compile("gcc", &["c-tests/cost/stack.c"], Link::Shared, &["-std=gnu11", "-O1"], "stack");
    // The loader looks functions up before.
    let output = run(Command::new(program).arg(scratch_dir("stack")).env("LD_BIND_NOW", "1"));
    assert!(stdout(&output).ends_with("ok\n"), "{output:?}");
    // What each call has needed.
    println!("{}", String::from_utf8_lossy(&output.stderr));
}
