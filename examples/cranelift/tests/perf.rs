//! Tests the output of the real perf for the code that Cranelift has compiled: names, shares, whole stacks, source lines.

#[path = "../../../tests/support/lost.rs"]
mod lost;
#[path = "../../../tests/support/tmp_files.rs"]
mod tmp_files;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use tmp_files::TmpFiles;

/// The maximum error of a share, as a fraction of 1.
const SHARE_TOLERANCE: f64 = 0.05;

/// perf, with its cache of objects in the test's directory.
fn perf(dir: &Path) -> Command {
    // perf 6.1 writes to an addr2line that may have ended, because addr2line cannot read a mapping such as `//anon`.
    let mut perf = Command::new("env");
    perf.args(["--ignore-signal=PIPE", "perf", "--buildid-dir"]).arg(dir.join("buildid"));
    perf
}

fn run(command: &mut Command) -> String {
    let output = command.env("LC_ALL", "C.UTF-8").env("PERF_CONFIG", "/dev/null").output().expect("start");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{stderr}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A stack: the symbol and the source line of each frame, innermost first.
type Stack = Vec<(String, String)>;

/// Records a program of the toy language for this number of seconds. Returns the stacks of all samples in compiled code, or
/// `None` if perf has lost samples.
fn record(dir: &Path, program: &Path, seconds: u32) -> Option<Vec<Stack>> {
    let (data, injected) = (dir.join("perf.data"), dir.join("jit.data"));
    let mut record = perf(dir);
    record.args(["record", "-q", "-k", "1", "-e", "cpu-clock", "-F", "999", "-m", "4M"]);
    record.args(["--call-graph", "dwarf,16384", "-o"]);
    for name in ["JITSYM", "JITSYM_DIR", "JITDUMPDIR"] {
        record.env_remove(name);
    }
    // The shell prints its pid before it executes the program.
    let program = format!("exec '{}' '{}' {seconds}", env!("CARGO_BIN_EXE_jitsym-cranelift"), program.display());
    let told = run(record.arg(&data).args(["--", "sh", "-c", &format!("echo $$; {program}")]));
    let _files = TmpFiles(told.trim().parse().expect("pid"));
    let stats = run(perf(dir).args(["report", "--stats", "-i"]).arg(&data));
    if lost::lost(&stats) > 0 {
        return None;
    }
    run(perf(dir).args(["inject", "--jit", "-i"]).arg(&data).arg("-o").arg(&injected));
    let text = run(perf(dir).args(["script", "-F", "pid,ip,sym,srcline", "-i"]).arg(&injected));

    let mut stacks: Vec<Stack> = Vec::new();
    let mut is_head = true;
    for line in text.lines() {
        // Each sample has a line with the PID, then for each frame a line "\tADDRESS SYMBOL" and a line "  PLACE", then an
        // empty line.
        if is_head && !line.is_empty() {
            stacks.push(Vec::new());
        } else if let Some(frame) = line.strip_prefix('\t') {
            let (_, symbol) = frame.trim_start().split_once(' ').expect("address and symbol");
            stacks.last_mut().expect("a sample").push((symbol.to_string(), String::new()));
        } else if let Some(place) = line.strip_prefix("  ") {
            let (_, of_frame) = stacks.last_mut().and_then(|stack| stack.last_mut()).expect("a frame");
            *of_frame = place.to_string();
        }
        is_head = line.is_empty();
    }
    stacks.retain(|stack| ["pixel", "row", "image", "start"].contains(&stack.first().map_or("", |frame| &frame.0)));
    Some(stacks)
}

#[test]
fn names_stacks_and_lines() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("perf");
    std::fs::create_dir_all(&dir).expect("directory");
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hello.toy");
    // On a busy machine there are fewer samples.
    let mut recordings = [2, 4, 8, 16, 32].into_iter().filter_map(|seconds| record(&dir, &program, seconds));
    let stacks = recordings.find(|stacks| stacks.len() > 300).expect("samples in compiled code");
    std::fs::remove_dir_all(&dir).expect("remove the recording");

    // The numbers of loop iterations in one call of `start`, with the lines of hello.toy that contain the loops.
    let truth = [("pixel", 4, 36000.0), ("pixel", 5, 12000.0), ("row", 8, 4000.0), ("image", 13, 4000.0)];
    let all: f64 = truth.iter().map(|(_, _, turns)| turns).sum();
    let mut found: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for stack in &stacks {
        *found.entry((&stack[0].0, &stack[0].1)).or_default() += 1;
    }
    for (name, line, turns) in truth {
        let samples = found.get(&(name, &*format!("hello.toy:{line}"))).copied().unwrap_or_default();
        let share = samples as f64 / stacks.len() as f64;
        let expected = turns / all;
        // Four standard deviations of the random error.
        let chance = 4.0 * (expected * (1.0 - expected) / stacks.len() as f64).sqrt();
        assert!((share - expected).abs() < chance.max(SHARE_TOLERANCE), "{name} in line {line}: {share} of {found:?}");
    }

    // The callers, with the lines of the calls, up to the program's call of the code.
    let callers = |name: &str| -> &[(&str, &[u32])] {
        match name {
            "pixel" => &[("row", &[9, 10]), ("image", &[14, 15]), ("start", &[18])],
            "row" => &[("image", &[14, 15]), ("start", &[18])],
            "image" => &[("start", &[18])],
            _ => &[],
        }
    };
    let is_whole = |stack: &&Stack| {
        let expected = callers(&stack[0].0);
        let (called, outside) = stack[1..].split_at(expected.len().min(stack.len() - 1));
        called.len() == expected.len()
            && called.iter().zip(expected).all(|((name, place), (expected, lines))| {
                name == expected && lines.iter().any(|line| *place == format!("hello.toy:{line}"))
            })
            && outside.first().is_some_and(|(name, _)| name.ends_with("main"))
            && outside.iter().any(|(name, _)| name.contains("lang_start"))
    };
    let whole = stacks.iter().filter(is_whole).count();
    println!("{whole} of {} stacks are whole", stacks.len());
    let example = stacks.iter().find(|stack| !is_whole(stack));
    assert!(whole as f64 >= 0.99 * stacks.len() as f64, "{whole} of {}, for example not {example:?}", stacks.len());
}
