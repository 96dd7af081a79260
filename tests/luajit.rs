//! `bindings/luajit` with the real, unmodified `luajit` and the real perf.

mod adopted;
mod hot;
mod life;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::cfi::{self, Dumped};
use crate::perf;
use crate::support::{
    artifacts, checker, fetched, is_root, root, run, run_privileged, scratch_dir, serial, spaceless, stdout,
    until_enough, wait_until, TmpFiles,
};

/// With arguments that let them run so many times as long.
type Arguments = fn(u32) -> String;
const PROGRAMS: [(&str, Arguments); 4] = [
    ("nbody", |pace| (5_000_000 * u64::from(pace)).to_string()),
    ("fannkuch", |pace| format!("10 {}", 2 * pace)),
    ("mandelbrot", |pace| (1800.0 * f64::from(pace).sqrt()).round().to_string()),
    ("strings", |pace| (2400 * pace).to_string()),
];
/// Samples in trace memory that each recording has to have.
const ENOUGH: usize = 300;

fn example(file: &str) -> PathBuf {
    root().join("bindings/luajit").join(file)
}

/// A command in whose environment `luajit -ljitsym` works.
fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = perf::command(program);
    command.env("LUA_PATH", format!("{};;", example("?.lua").display()));
    command.env("JITSYM_LIB", artifacts().shared_dir.join("libjitsym.so"));
    command
}

/// perf, in that environment.
fn perf(subcommand: &str) -> Command {
    perf::of(command("env"), crate::support::perf_words(subcommand), subcommand)
}

/// Runs a prepared luajit, which must succeed. Its files in /tmp go with the guard.
fn finish(mut luajit: Command) -> (Output, TmpFiles) {
    let child =
        luajit.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start luajit");
    let files = TmpFiles(child.id());
    let output = child.wait_with_output().expect("wait for luajit");
    assert!(output.status.success(), "{}", crate::support::describe(&luajit, &output));
    check_files(files.0);
    (output, files)
}

/// Nothing is wrong with what a process has written, as far as it has.
fn check_files(pid: u32) {
    for path in [format!("/tmp/perf-{pid}.map"), format!("/tmp/jit-{pid}.dump")] {
        if Path::new(&path).exists() {
            checker::assert_sound(Path::new(&path), &[]);
        }
    }
}

// ------------------------------------------------------------------------------------------------ names

/// A sample whose instruction pointer lies in memory that LuaJIT has its traces in.
struct Sample {
    ip: u64,
    symbol: String,
    dso: String,
}

/// What one recording says by itself, without the library: the process, and its anonymous executable mappings. These
/// are the areas that LuaJIT takes for machine code; each has the stubs for leaving traces at its lower end, 4 bytes
/// each, which are not part of a trace but hardly ever caught by a sample.
struct Recording {
    file: PathBuf,
    pid: u32,
    areas: Vec<std::ops::Range<u64>>,
    /// What the program printed.
    output: String,
    _files: TmpFiles,
}

/// Of one of the programs, with enough samples, and its arguments.
fn record(program: &str, size: Arguments) -> (Recording, Vec<OsString>) {
    until_enough(ENOUGH, |pace| {
        let mut arguments = vec![example(&format!("{program}.lua")).into_os_string()];
        arguments.extend(size(pace).split(' ').map(OsString::from));
        let recording = record_with(Path::new("luajit"), program, &[], &["-g"], &arguments);
        let count = recording.samples(&recording.file).len();
        ((recording, arguments), count)
    })
}

fn record_with(
    luajit: &Path,
    name: &str,
    variables: &[(&str, &str)],
    options: &[&str],
    arguments: &[OsString],
) -> Recording {
    let options = [&["-k", "1", "-e", "cpu-clock", "-F", "999"], options].concat();
    record_plainly(luajit, name, variables, &options, arguments)
}

/// The same with no options of perf but these.
fn record_plainly(
    luajit: &Path,
    name: &str,
    variables: &[(&str, &str)],
    options: &[&str],
    arguments: &[OsString],
) -> Recording {
    let file = scratch_dir("perf").join(format!("{name}.data"));
    let mut record = perf("record");
    record.envs(variables.iter().copied()).arg("-q").args(options).arg("-o").arg(&file);
    record.arg(luajit).arg("-ljitsym").args(arguments);
    perf::whole(&file, || {
        let output = stdout(&run(&mut record));
        read(name, &file, output)
    })
}

fn read(name: &str, file: &Path, output: String) -> Recording {
    let events = stdout(&run(perf("script").arg("--show-mmap-events").arg("-i").arg(file)));
    let mut pids = BTreeSet::new();
    let mut areas = BTreeSet::new();
    for event in events.lines() {
        // ... PERF_RECORD_MMAP2 PID/TID: [0xADDR(0xSIZE) @ ...]: r-xp //anon
        let Some((_, event)) = event.split_once("PERF_RECORD_MMAP2 ") else { continue };
        let Some(event) = event.strip_suffix(": r-xp //anon") else { continue };
        let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("hexadecimal number");
        let (ids, event) = event.split_once(": [").expect("mapping");
        let (addr, event) = event.split_once('(').expect("address");
        let (size, _) = event.split_once(')').expect("size");
        pids.insert(ids.split_once('/').expect("pid and tid").0.parse::<u32>().expect("pid"));
        areas.insert((hex(addr), hex(size)));
    }
    assert_eq!(pids.len(), 1, "{name}: one process with machine code");
    let areas = areas.into_iter().map(|(addr, size)| addr..addr + size).collect();
    let pid = pids.into_iter().next().expect("one");
    Recording { file: file.into(), pid, areas, output, _files: TmpFiles(pid) }
}

impl Recording {
    fn in_areas(&self, ip: u64) -> bool {
        self.areas.iter().any(|area| area.contains(&ip))
    }

    fn samples(&self, file: &Path) -> Vec<Sample> {
        self.samples_by(perf("script"), file)
    }

    /// The samples in trace memory, in order of time.
    fn samples_by(&self, mut script: Command, file: &Path) -> Vec<Sample> {
        let text = stdout(&run(script.args(["-G", "-F", "pid,ip,sym,dso", "-i"]).arg(file)));
        let mut samples = Vec::new();
        for line in text.lines() {
            // PID IP SYMBOL (DSO)
            let parse = || {
                let (pid, rest) = line.trim_start().split_once(char::is_whitespace)?;
                let (ip, rest) = rest.trim_start().split_once(' ')?;
                let (symbol, dso) = rest.strip_suffix(')')?.rsplit_once(" (")?;
                let ip = u64::from_str_radix(ip, 16).ok()?;
                Some((pid.parse::<u32>().ok()?, Sample { ip, symbol: symbol.into(), dso: dso.into() }))
            };
            let (pid, sample) = parse().unwrap_or_else(|| panic!("perf script printed {line:?}"));
            if pid == self.pid && self.in_areas(sample.ip) {
                samples.push(sample);
            }
        }
        samples
    }
}

/// Whether it is the name of a trace that starts in a line of the program.
fn is_trace_name(symbol: &str, program: &str, lines: u32) -> bool {
    let parse = || {
        let (number, place) = symbol.strip_prefix("TRACE_")?.split_once(' ')?;
        let line = place.strip_prefix(program)?.strip_prefix(".lua:")?;
        Some((number.parse::<u32>().ok()?, line.parse::<u32>().ok()?))
    };
    parse().is_some_and(|(number, line)| number > 0 && (1..=lines).contains(&line))
}

/// At least 99 % of the samples in trace memory must carry the name of a trace, and come from the right file.
fn check_names(samples: &[Sample], program: &str, lines: u32, dso: &str) {
    let named = |sample: &&Sample| is_trace_name(&sample.symbol, program, lines) && sample.dso.contains(dso);
    let count = samples.iter().filter(named).count();
    let mut others: BTreeMap<String, u32> = BTreeMap::new();
    for sample in samples.iter().filter(|sample| !named(sample)) {
        *others.entry(format!("{:x} {} ({})", sample.ip, sample.symbol, sample.dso)).or_default() += 1;
    }
    println!("{program}: {count} of {} samples in trace memory named, in {dso}", samples.len());
    assert!(samples.len() >= ENOUGH, "{program}: only {} samples in trace memory", samples.len());
    assert!(
        count * 100 >= samples.len() * 99,
        "{program}: {count} of {} named; the others: {others:#?}",
        samples.len()
    );
}

#[test]
fn perf_names_traces() {
    let _serial = serial();
    for (program, size) in PROGRAMS {
        let source = std::fs::read_to_string(example(&format!("{program}.lua"))).expect("program");
        let lines = source.lines().count() as u32;
        let (recording, arguments) = record(program, size);
        check_files(recording.pid);
        let expected = stdout(&run(command("luajit").args(arguments)));
        assert_eq!(recording.output, expected, "{program}: the result with the module");
        assert!(!expected.is_empty());

        let by_map = recording.samples(&recording.file);
        check_names(&by_map, program, lines, &format!("perf-{}.map", recording.pid));

        let injected = recording.file.with_extension("injected");
        run(perf("inject").arg("--jit").arg("-i").arg(&recording.file).arg("-o").arg(&injected));
        let by_dump = recording.samples(&injected);
        check_names(&by_dump, program, lines, &format!("jitted-{}-", recording.pid));

        // Map and dump say the same of every address.
        let names: HashMap<u64, &str> = by_map.iter().map(|sample| (sample.ip, &*sample.symbol)).collect();
        let known = by_dump.iter().filter(|sample| sample.symbol.starts_with("TRACE_"));
        for sample in known.filter(|sample| names[&sample.ip].starts_with("TRACE_")) {
            assert_eq!(names[&sample.ip], sample.symbol, "{program}: the name at {:x}", sample.ip);
        }

        if program == "nbody" {
            check_source_lines(&recording, &injected, lines);
            check_square_roots(recording.pid, &source);
        }
    }
}

/// The README's commands up to its first report, typed in a directory that has nothing.
#[test]
fn the_readme_tells_the_truth() {
    let readme = std::fs::read_to_string(example("README.md")).expect("README");
    let lines = readme.lines().filter_map(|line| line.strip_prefix("    "));
    let commands: Vec<&str> = lines.take_while(|line| !line.starts_with("perf report")).collect();
    let library = artifacts().shared_dir.join("libjitsym.so");
    let commands = commands.join("\n").replace("/path/to/libjitsym.so", spaceless(&library).to_str().expect("UTF-8"));
    let commands = commands.replace("/path/to/libjitsym", spaceless(root()).to_str().expect("UTF-8"));
    let dir = crate::support::fresh_dir("readme");
    let mut shell = command("sh");
    shell.current_dir(&dir).env_remove("LUA_PATH").env_remove("JITSYM_LIB");
    {
        let _alone = serial();
        // To a pipe perf would write what it records.
        let commands = format!("exec >/dev/null\n{commands}");
        run(shell.args(["-euc", &commands]));
    }
    let report = stdout(&run(perf("report").current_dir(&dir).args(["--stdio", "--sort", "pid,sym"])));
    let hottest = report.lines().find(|line| !line.starts_with('#') && !line.trim().is_empty()).expect("a sample");
    assert!(hottest.contains("TRACE_") && hottest.contains(" nbody.lua:"), "{report}");
    let pid = hottest.split_whitespace().find_map(|word| word.split(':').next()?.parse().ok());
    drop(TmpFiles(pid.expect("pid")));
}

// ------------------------------------------------------------------------------------------------ source lines

/// perf shows a line of the program for the samples in traces, and not always the same one.
fn check_source_lines(recording: &Recording, injected: &Path, lines: u32) {
    let text = stdout(&run(perf("script").args(["-G", "-F", "pid,ip,srcline", "-i"]).arg(injected)));
    let mut found: BTreeMap<u32, u32> = BTreeMap::new();
    let (mut all, mut good) = (0, 0);
    let mut rest = text.lines().peekable();
    while let Some(line) = rest.next() {
        // PID IP, and on a line of its own FILE:LINE.
        let ip = line.split_whitespace().nth(1).and_then(|ip| u64::from_str_radix(ip, 16).ok());
        if !ip.is_some_and(|ip| recording.in_areas(ip)) {
            continue;
        }
        all += 1;
        let place = rest.peek().and_then(|next| next.trim().strip_prefix("nbody.lua:"));
        if let Some(number) = place.and_then(|number| number.parse().ok()).filter(|number| (1..=lines).contains(number))
        {
            good += 1;
            *found.entry(number).or_default() += 1;
        }
    }
    println!("nbody: {good} of {all} samples have a source line: {found:?}");
    assert!(all >= ENOUGH && good * 100 >= all * 99, "{good} of {all} samples have a source line");
    assert!(found.len() >= 10, "the samples are in more than {} lines", found.len());
}

/// Line tables against the machine code itself: the square root is computed in one line of the program, and so must be
/// the instructions that do it.
fn check_square_roots(pid: u32, source: &str) {
    let is_root = |line: &str| line.contains("math.sqrt") && line.contains("pull");
    let expected = 1 + source.lines().position(is_root).expect("the line in the program") as u32;
    let found = square_roots(pid);
    println!("nbody: the square root of line {expected} is computed in lines {found:?}");
    assert!(!found.is_empty() && found.iter().all(|&line| line == expected), "{found:?}, not {expected}");
}

/// The lines of all instructions in traces that compute a square root.
fn square_roots(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for code in read_dump(pid) {
        for at in 0..code.code.len() {
            // sqrtsd: F2 [REX] 0F 51
            let tail = &code.code[at..];
            let root = matches!(tail, [0xf2, 0x0f, 0x51, ..] | [0xf2, 0x40..=0x4f, 0x0f, 0x51, ..]);
            if root {
                let row = code.lines.iter().rev().find(|row| row.0 <= code.addr + at as u64);
                found.push(row.expect("line tables start with the code").1);
            }
        }
    }
    found
}

/// The traces in the jitdump of a process.
fn read_dump(pid: u32) -> Vec<Dumped> {
    let mut codes = cfi::read_dump(File::open(format!("/tmp/jit-{pid}.dump")).expect("the dump"));
    // No code, but where perf finds the tables of the code after it.
    codes.retain(|code| code.name != "[unwind tables]");
    codes
}

// ------------------------------------------------------------------------------------------------ unwinding

/// The registers and the frame layout are those of x86-64.
#[cfg(target_arch = "x86_64")]
mod unwinding {
    use std::ffi::OsStr;
    use std::process::Child;
    use std::time::Duration;

    use gimli::{BaseAddresses, CfaRule, EhFrame, LittleEndian, RegisterRule, UnwindContext, UnwindSection};

    use super::*;

    /// Kills the process when the test is over, however it ends, and then removes its files.
    struct Running(Child, #[expect(dead_code)] TmpFiles);

    impl Drop for Running {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn ptrace(request: libc::c_uint, pid: i32, data: *mut libc::c_void) {
        // SAFETY: `data` is what the requests used here take: nothing, or a writable user_regs_struct.
        let result = unsafe { libc::ptrace(request, pid, std::ptr::null_mut::<libc::c_void>(), data) };
        assert_eq!(result, 0, "ptrace {request}: {}", std::io::Error::last_os_error());
    }

    fn wait_for_stop(pid: i32) {
        let mut status = 0;
        // SAFETY: `status` is writable.
        let found = unsafe { libc::waitpid(pid, &mut status, libc::__WALL) };
        assert!(found == pid && libc::WIFSTOPPED(status), "luajit did not stop: {found}, status {status:x}");
        assert_eq!(libc::WSTOPSIG(status), libc::SIGTRAP, "luajit got a signal");
    }

    fn registers(pid: i32) -> libc::user_regs_struct {
        // SAFETY: a struct of integers.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        ptrace(libc::PTRACE_GETREGS, pid, (&raw mut registers).cast());
        registers
    }

    fn read_word(pid: i32, addr: u64) -> u64 {
        let mut word = 0u64;
        let local = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: 8 };
        let remote = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: 8 };
        // SAFETY: `local` describes `word`.
        let read = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
        assert_eq!(read, 8, "no stack at {addr:x}");
        word
    }

    /// The unwind tables of the dump against a running luajit, instruction by instruction.
    ///
    /// These programs run in one call of the interpreter, so that all instructions of all traces have the same frame,
    /// which begins at the same address, however deep the stack is at that moment: above a return address into luajit.
    /// No other value than the right one has that property through heads, bodies and tails of traces with different
    /// frames.
    #[test]
    fn unwind_tables_hold_at_every_instruction() {
        const BURSTS: usize = 40;
        const STEPS: usize = 1500;
        let mut all_sizes = BTreeSet::new();
        for (program, size) in [("nbody", "1000000000"), ("fannkuch", "12"), ("strings", "10000000")] {
            let mut luajit = command("luajit");
            luajit.arg("-ljitsym").arg(example(&format!("{program}.lua"))).arg(size).stdout(Stdio::null());
            let child = luajit.spawn().expect("start luajit");
            let id = child.id();
            let _child = Running(child, TmpFiles(id));
            let pid = id as i32;
            let dump_size = || std::fs::metadata(format!("/tmp/jit-{pid}.dump")).map_or(0, |dump| dump.len());
            wait_until("a trace in the dump", || dump_size() >= 1000);
            std::thread::sleep(Duration::from_millis(200));

            ptrace(libc::PTRACE_SEIZE, pid, std::ptr::null_mut());
            let mut seen: BTreeMap<(u64, u64), u32> = BTreeMap::new();
            for burst in 0..BURSTS {
                if burst > 0 {
                    ptrace(libc::PTRACE_CONT, pid, std::ptr::null_mut());
                    std::thread::sleep(Duration::from_millis(5));
                }
                ptrace(libc::PTRACE_INTERRUPT, pid, std::ptr::null_mut());
                wait_for_stop(pid);
                for _ in 0..STEPS {
                    let registers = registers(pid);
                    *seen.entry((registers.rip, registers.rsp)).or_default() += 1;
                    ptrace(libc::PTRACE_SINGLESTEP, pid, std::ptr::null_mut());
                    wait_for_stop(pid);
                }
            }
            // Only the thread that runs Lua is stopped; the writer goes on until there is nothing more to write.
            let mut size_before = 0;
            while std::mem::replace(&mut size_before, dump_size()) != dump_size() {
                std::thread::sleep(Duration::from_millis(500));
            }
            let codes = read_dump(id);

            let mut frames: BTreeMap<u64, u32> = BTreeMap::new();
            let (mut steps, mut traces, mut sizes) = (0, BTreeSet::new(), BTreeSet::new());
            let mut bare = 0;
            for (&(rip, rsp), &count) in &seen {
                // The newest is the one that lives there.
                let holds = |code: &&Dumped| code.range().contains(&rip);
                let Some(code) = codes.iter().rev().find(holds) else { continue };
                let Some((eh_frame, ..)) = &code.tables else {
                    bare += count;
                    continue;
                };
                let (size, saved) = frame_at(code, eh_frame, rip);
                // rbx, rbp, r12 to r15 by their DWARF numbers.
                assert_eq!(
                    saved,
                    [(3, -24), (6, -16), (12, -80), (13, -88), (14, -40), (15, -32), (16, -8)],
                    "{}",
                    code.name
                );
                *frames.entry(rsp + size).or_default() += count;
                steps += count;
                traces.insert(&code.name);
                sizes.insert(size);
            }
            println!(
                "{program}: {steps} steps in {} traces, {bare} without table, frames of {sizes:?} bytes",
                traces.len()
            );
            assert!(steps >= 3000 && traces.len() >= 2, "{program}: {steps} steps in {} traces", traces.len());
            assert!(bare * 10 <= steps, "{program}: {bare} steps in traces without a table");
            assert_eq!(frames.len(), 1, "{program}: one frame, not {frames:x?}");
            all_sizes.extend(sizes);

            // The return address follows a call instruction of luajit.
            let cfa = *frames.keys().next().expect("one");
            let back = read_word(pid, cfa - 8);
            let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("mappings");
            let in_luajit = maps.lines().any(|line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                let (from, to) = fields[0].split_once('-').expect("range");
                let hex = |text| u64::from_str_radix(text, 16).expect("address");
                let name = fields.get(5).and_then(|path| Path::new(path).file_name()).unwrap_or(OsStr::new(""));
                let ours = name.to_string_lossy().starts_with("luajit") || name.to_string_lossy().contains("libluajit");
                ours && fields[1] == "r-xp" && (hex(from)..hex(to)).contains(&back)
            });
            assert!(in_luajit, "{program}: {back:x} is not in luajit:\n{maps}");
            assert_eq!(read_word(pid, back - 5) as u8, 0xe8, "{program}: a call before {back:x}");
        }
        assert!(all_sizes.len() >= 2, "traces with and without stack of their own: {all_sizes:?}");
    }

    /// The distance from the stack pointer to the CFA, and where registers are saved, by the table of the dump.
    fn frame_at(code: &Dumped, eh_frame: &[u8], rip: u64) -> (u64, Vec<(u16, i64)>) {
        let section = EhFrame::new(eh_frame, LittleEndian);
        // perf lays the table out behind the code, aligned.
        let at = code.addr + (code.code.len() as u64).next_multiple_of(8);
        let bases = BaseAddresses::default().set_eh_frame(at);
        let mut context = UnwindContext::new();
        let row = section
            .unwind_info_for_address(&bases, &mut context, rip, EhFrame::cie_from_offset)
            .unwrap_or_else(|error| panic!("{} at {rip:x}: {error}", code.name));
        let CfaRule::RegisterAndOffset { register, offset } = row.cfa() else {
            panic!("{}: {:?}", code.name, row.cfa())
        };
        assert_eq!(register.0, 7, "{}: counted from rsp", code.name);
        let mut saved: Vec<(u16, i64)> = row
            .registers()
            .map(|(register, rule)| match rule {
                RegisterRule::Offset(offset) => (register.0, *offset),
                other => panic!("{}: {other:?}", code.name),
            })
            .collect();
        saved.sort_unstable();
        (*offset as u64, saved)
    }
}

// ------------------------------------------------------------------------------------------------ the life of traces

/// After a flush of the machine code nothing is live but what was compiled since.
#[test]
fn flushed_traces_are_unregistered() {
    let mut plain = command("luajit");
    plain.arg(example("churn.lua")).args(["4", "300"]);
    let expected = stdout(&run(&mut plain));

    let script = r#"
        local js, ju = require("jitsym"), require("jit.util")
        local function counters(title)
          assert(js.flush(60000))
          local stats, found = assert(js.stats()), 0
          for number = 1, 2000 do
            found = found + (ju.traceinfo(number) and 1 or 0)
          end
          io.write(title, " traces ", found)
          for _, name in ipairs {
            "registered", "unregistered", "overwritten", "live", "flushes", "refused", "failures",
          } do
            io.write(" ", name, " ", stats[name])
          end
          io.write("\n")
        end
        jit.off(counters)
        arg = { "4", "300" }
        dofile(CHURN)
        counters("churned")
        kept = {}
        for i = 1, 20 do
          kept[i] = loadstring("local sum = 0 for i = 1, 200 do sum = sum + i end return sum")
          kept[i]()
        end
        counters("again")
        jit.flush()
        counters("flushed")
    "#;
    let mut luajit = command("luajit");
    luajit.args(["-ljitsym", "-e"]).arg(format!("CHURN = {:?}\n{script}", example("churn.lua")));
    let (output, _files) = finish(luajit);
    let text = stdout(&output);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let rest = text.strip_prefix(&expected).unwrap_or_else(|| panic!("{text}\ndoes not begin with\n{expected}"));
    println!("{rest}");

    let lines: Vec<HashMap<&str, u64>> = rest
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').skip(1).collect();
            words.chunks(2).map(|pair| (pair[0], pair[1].parse().expect("number"))).collect()
        })
        .collect();
    let [churned, again, flushed] = &lines[..] else { panic!("three lines, not\n{rest}") };

    // One or two traces for each of the 1200 functions, all gone; now and then LuaJIT flushes on its own account too.
    assert!(churned["registered"] >= 1200, "{rest}");
    assert_eq!((churned["unregistered"], churned["live"]), (churned["registered"], 0), "{rest}");
    assert!(churned["flushes"] >= 4, "{rest}");
    // What was compiled since is live; LuaJIT itself says how much that is.
    assert!(again["live"] >= 20, "{rest}");
    assert_eq!(again["live"], again["traces"], "{rest}");
    assert_eq!(again["registered"] - again["unregistered"], again["live"], "{rest}");
    assert_eq!((flushed["live"], flushed["traces"], flushed["unregistered"]), (0, 0, flushed["registered"]), "{rest}");
    for line in &lines {
        assert_eq!((line["refused"], line["failures"], line["overwritten"]), (0, 0, 0), "{rest}");
    }
}

/// Without `JITSYM_LIB` the library is found by the name that it is installed with, and by that of a development package; another
/// version of it is not taken for it.
#[test]
fn the_library_is_found_by_its_names_and_version() {
    let real = artifacts().shared_dir.join("libjitsym.so");
    let build = |version: u32| {
        let source = scratch_dir("versions").join(format!("{version}.c"));
        // With everything else, which it has from the real one.
        std::fs::write(&source, format!("unsigned jitsym_version_number(void) {{ return {version}; }}\n"))
            .expect("write");
        let library = source.with_extension("so");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-Wl,--no-as-needed", "-o"]).arg(&library).args([&source, &real]);
        run(cc.arg(format!("-Wl,-rpath,{}", artifacts().shared_dir.display())));
        library
    };
    let (patch, minor, major) = (build(1999), build(2000), build(1_001_000));
    let state = "local js = require 'jitsym' io.write(tostring(js.active), ' ', tostring(js.message))";
    let with = |libraries: &[(&str, &Path)], given: Option<&Path>| {
        let dir = crate::support::fresh_dir("names");
        for (name, file) in libraries {
            std::os::unix::fs::symlink(file, dir.join(name)).expect("link");
        }
        let mut luajit = command("luajit");
        luajit.env("LD_LIBRARY_PATH", dir).env("JITSYM_LIB", given.unwrap_or(Path::new(""))).args(["-e", state]);
        stdout(&finish(luajit).0)
    };
    assert_eq!(with(&[("libjitsym.so.0.1", &real)], None), "true nil");
    assert_eq!(with(&[("libjitsym.so", &real)], None), "true nil");
    assert_eq!(with(&[("libjitsym.so.0.1", &minor), ("libjitsym.so", &real)], None), "true nil");
    assert_eq!(with(&[], Some(&patch)), "true nil");
    for other in [&minor, &major] {
        let message = with(&[("libjitsym.so", other)], None);
        assert!(message.starts_with("false ") && message.contains("jitsym is not version 0.1"), "{message}");
        let message = with(&[("libjitsym.so.0.1", &real)], Some(other));
        assert_eq!(message, format!("false {} is not version 0.1", other.display()));
    }
}

/// A program with the rights of another user does not load what its user names.
#[test]
fn a_privileged_program_chooses_its_library_itself() {
    if !is_root("give a program to another group") {
        return;
    }
    let state = "require 'jitsym' local maps = io.open('/proc/self/maps'):read('*a') \
                 io.write(tostring(maps:find(os.getenv('JITSYM_LIB'), 1, true) ~= nil))";
    let plain = command("luajit");
    let complete = |luajit: &mut Command| {
        luajit.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        luajit.env("JITSYM", "off").args(["-e", state]);
    };
    let file = stdout(&run(Command::new("sh").args(["-c", "command -v luajit"])));
    let luajit = Path::new(file.trim());
    assert_eq!(stdout(&run_privileged(luajit, complete)), "false");
    // The control: so it is found without other rights.
    let mut control = Command::new(luajit);
    complete(&mut control);
    assert_eq!(stdout(&run(&mut control)), "true");
}

/// The module never gets into the program's way: without the library, switched off, with another handler of the events.
#[test]
fn the_program_is_left_alone() {
    let mut plain = command("luajit");
    plain.arg(example("mandelbrot.lua")).arg("300");
    let expected = stdout(&run(&mut plain));

    let run_with = |variable: Option<(&str, &str)>, before: &[&str], after: &[&str]| {
        let mut luajit = command("luajit");
        luajit.envs(variable).args(before).arg("-ljitsym").args(after);
        let (output, _files) = finish(luajit);
        (stdout(&output), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let path = example("mandelbrot.lua");
    let program = [path.to_str().expect("UTF-8"), "300"];
    let state = "local js = require 'jitsym' io.write(tostring(js.active), '\\n', tostring(js.message), '\\n') \
                 local ok, why = js.stats() io.write(tostring(ok and 'counters'), '\\n', tostring(why), '\\n')";

    for (variable, reason) in [
        (("JITSYM_LIB", "/nonexistent/libjitsym.so"), "/nonexistent/libjitsym.so"),
        (("JITSYM_LIB", "libm.so.6"), "jitsym_version_number"),
        (("JITSYM", "off"), "JITSYM"),
    ] {
        let (out, err) = run_with(Some(variable), &[], &program);
        assert_eq!((&*out, &*err), (&*expected, ""), "{variable:?}");
        let (out, err) = run_with(Some(variable), &[], &["-e", state]);
        let lines: Vec<&str> = out.lines().collect();
        let [active, message, none, why] = lines[..] else { panic!("{variable:?}: {out}{err}") };
        assert_eq!((active, none, message, &*err), ("false", "nil", why, ""), "{variable:?}");
        assert!(message.contains(reason), "{variable:?}: {message}");
    }
    let (out, err) = run_with(None, &[], &["-e", state]);
    assert_eq!((&*out, &*err), ("true\nnil\ncounters\nnil\n", ""));

    // LuaJIT's own listing of traces, attached before the module, still comes.
    let (out, err) = run_with(None, &["-jv"], &program);
    assert_eq!(out, expected);
    assert!(err.lines().count() >= 3 && err.lines().all(|line| line.starts_with("[TRACE ")), "{err}");

    // The program's own declarations of the library, before and after the module's, and the module loaded a second
    // time.
    let declared = "local ffi = require 'ffi' local function declare() ffi.cdef[[typedef struct jitsym jitsym; \
                    int jitsym_flush(jitsym *, uint32_t);]] end declare() package.loaded.jitsym = nil \
                    local js = require 'jitsym' declare() \
                    ffi.cdef[[struct jitsym_code { int x; };]] for i = 1, 200 do end \
                    io.write(tostring(js.active), ' ', tostring(js.flush()), ' ', js.stats().failures, '\\n')";
    let (out, err) = run_with(None, &[], &["-e", declared]);
    assert_eq!((&*out, &*err), ("true true 0\n", ""));
}
