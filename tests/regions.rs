//! Code regions, read by the real perf with no step in between: names and whole call stacks of packed code, held against the
//! ground truth (`c-tests/matrix/`), and the files themselves, read by other people's tools.
//!
//! Most tests step through the program, so that each instruction of its code is a sample, and all have to be right.

mod elf;
mod injected;
mod recorded;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::perf;
use crate::script;
use crate::support::{compile, describe, fresh_dir, root, run, stdout, tool, wait_until, Link};
use crate::truth;
use jitsym_step::Graph;
use recorded::{for_frame_pointers, for_tables, Recorded, Running, TABLES};

/// Steps through a scenario in regions of the library's own, and wants all names and whole stacks.
fn right(scenario: &str) {
    Recorded::of(for_tables(), scenario, &["memory=created"], TABLES).check();
}

/// The same in memory of the program's own, which the library adopts.
fn right_in_adopted(scenario: &str) {
    Recorded::of(for_tables(), scenario, &["memory=adopted"], TABLES).check();
}

// ------------------------------------------------------------------------------------------------ names and stacks

#[test]
fn packed_in_two_views() {
    right("packed-up");
}

#[test]
fn packed_downward() {
    right("packed-down");
}

/// One view, which the program makes writable and executable in turn.
#[test]
fn one_view() {
    right("w-xor-x");
}

/// C between the frames of the guest, and a hundred frames of it.
#[test]
fn deep_and_through_c() {
    right("callbacks");
    right("deep-recursion-rows");
}

#[test]
fn adopted_while_a_thread_runs_in_it() {
    right("region-adopted");
}

#[test]
fn adopted_and_made_writable_in_turn() {
    right("region-adopted-flips");
}

/// perf is not told that a mapping goes, and takes the lowest one of a file for the file's beginning. So it is told of none that
/// lies elsewhere than all others of its file.
#[test]
fn adopted_memory_is_mapped_at_one_place() {
    let recorded = Recorded::of(for_tables(), "region-adopted", &[], TABLES);
    let mapped = recorded.mapped();
    let mut begins: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for mapping in script::mappings(&mapped).expect("mappings") {
        if script::is_region(mapping.path) {
            begins.entry(mapping.path).or_default().insert(mapping.range.start.wrapping_sub(mapping.offset));
        }
    }
    assert!(!begins.is_empty() && begins.values().all(|begins| begins.len() == 1), "{begins:x?}");
}

#[test]
fn adopted_memory_is_used_as_before() {
    right_in_adopted("cache-flush");
    right_in_adopted("w-xor-x");
}

/// The program only registers code; the user has set `JITSYM_ADOPT`.
#[test]
fn adopted_by_itself() {
    right("region-automatic");
}

#[test]
fn released() {
    right("region-released");
}

/// A thousand pieces a second, of other names, sizes and frames, over what was there before.
#[test]
fn reused() {
    right("region-reused");
}

#[test]
fn moved() {
    right("moves");
}

/// Memory is adopted before it is writable and executable at once, so that no `mprotect` of the program's tells of new names.
#[test]
fn reused_in_what_was_reserved() {
    Recorded::of(for_tables(), "cache-flush", &["memory=reserved"], TABLES).check();
}

/// Nobody says that the old code is gone: the registration of the new code ends it.
#[test]
fn overwritten() {
    right("overwrite");
    right_in_adopted("overwrite");
}

#[test]
fn threads_that_compile_and_run() {
    right("threads");
}

/// Children go on compiling in the region that they have inherited.
#[test]
fn forked() {
    right("region-forked");
}

/// Each function has its own mapping, which the library puts into a window with others; in children too.
#[test]
fn windows() {
    let recorded = Recorded::of(for_tables(), "region-windows", &["memory=created"], TABLES);
    recorded.check();
    let mapped = recorded.mapped();
    let paths = script::mappings(&mapped).expect("mappings").into_iter().map(|mapping| mapping.path);
    let files: BTreeSet<&str> = paths.filter(|path| script::is_region(path)).collect();
    println!("{} files", files.len());
    // Each of three processes has 128 functions, and exchanges some.
    assert!(files.len() <= 12, "{files:?}");
}

/// Some thousand functions, for each of which the program asks for memory and gives it back.
#[test]
fn allocated() {
    right("region-allocated");
}

/// A child goes on with the memory that was handed out in its parent.
#[test]
fn allocated_and_forked() {
    right("region-allocated-forked");
}

#[test]
fn grown_and_given_back() {
    right("region-grown");
    right("region-discarded");
}

#[test]
fn huge_pages() {
    right("region-huge-pages");
}

#[test]
fn several_regions_and_sessions() {
    right("region-several");
}

#[test]
fn a_hundred_thousand() {
    Recorded::of(for_tables(), "many", &["memory=created", "count=100000"], TABLES).check();
}

#[test]
fn frame_pointers() {
    Recorded::of(for_frame_pointers(), "frame-pointers", &["memory=created"], Graph::FramePointers).check();
}

/// perf comes when the process is there already.
#[test]
fn attached() {
    let attached = |pace| {
        Running::recorded(|| {
            let mut running = Running::at_pace(pace, "attach-late", &["memory=created", "wait=1"]);
            running.wait_for("ready");
            running
        })
    };
    Recorded::with_enough(500, attached).check();
}

// ------------------------------------------------------------------------------------------------ what users type

/// `perf record`, `perf report`, and nothing else: each function has its share, by its name, out of the region's file.
#[test]
fn plain_record_and_report() {
    let recorded = Recorded::sampled(for_tables(), "packed-up", &["memory=created"], &["--call-graph", "dwarf"]);
    let text = recorded.perf("report", &["--stdio", "-q", "--no-children", "-g", "none", "-F", "sample,dso,sym"]);
    let (mut named, mut others) = (0, 0);
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let samples: usize = fields[0].parse().unwrap_or_else(|_| panic!("{line:?}"));
        let of_guest = recorded.truth.codes.iter().any(|code| code.name == fields[fields.len() - 1]);
        if of_guest && script::is_region(fields[1]) {
            named += samples;
        } else if script::is_region(fields[1]) || fields[1].starts_with("[JIT]") || fields[1] == "[unknown]" {
            others += samples;
        }
    }
    assert!(
        named > 500 && others * 100 <= named,
        "{named} samples in guest code have names, {others} have not:\n{text}"
    );
}

/// The program of README.md, of which one function lies at the very beginning of its file: `perf report` has one row for each name.
#[test]
fn one_row_for_a_function() {
    let dir = fresh_dir("one-row");
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README.md");
    let (_, program) = readme.split_once("```c\n").expect("a program");
    let source = dir.join("vm.c");
    std::fs::write(&source, program.split("```").next().expect("its end")).expect("write the program");
    let vm = compile("gcc", &[source.to_str().expect("UTF-8")], Link::Shared, &["-O1"], "one-row");
    let data = dir.join("perf.data");
    let mut record = perf::perf("record");
    record.args(["-e", "cpu-clock", "-F", "999", "-o"]).arg(&data).arg("--").arg(&vm);
    run(record.env("JITSYM_ADOPT", "1").env("JITSYM_DIR", &dir));
    let report = ["--stdio", "-q", "-F", "sample,dso,sym", "-i"];
    let text = stdout(&run(perf::perf("report").args(report).arg(&data)));
    let fields = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut names: Vec<&str> = fields
        .filter(|fields| fields.len() > 2 && script::is_region(fields[1]))
        .map(|fields| fields[fields.len() - 1])
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["collatz", "halve"], "{text}");
}

/// Source lines by `perf report`, by `perf script` and between the instructions that `perf annotate` shows.
#[test]
fn source_lines() {
    source_lines_in("created");
    source_lines_in("adopted");
}

fn source_lines_in(memory: &str) {
    let recorded = Recorded::of(for_tables(), "last-line", &[&format!("memory={memory}")], TABLES);
    recorded.check();
    let flat = recorded.perf("script", &["--ns", "-G", "-F", &format!("{},srcline", script::FIELDS)]);
    let lines = script::lines(&recorded.truth, &script::parse(&flat).expect("script"));
    assert!(lines.counted > 50 && lines.right == lines.counted, "lines: {lines:?}");

    let source = recorded.truth.paths["source"].clone();
    let name = source.file_name().expect("name").to_string_lossy().into_owned();
    let hot = std::fs::read_to_string(&source).expect("source");
    let is_hot = |line: &str| {
        let number = line.split(&format!("{name}:")).nth(1).and_then(|rest| rest.trim().parse::<usize>().ok());
        number.and_then(|number| hot.lines().nth(number - 1)).is_some_and(|text| text.contains("burn"))
    };
    // With `--inline`: nothing is inlined, and each line goes with its function.
    let fields = ["--inline", "-F", "sample,sym,srcline"];
    let report = recorded.perf("report", &[&["--stdio", "-q", "--no-children", "-g", "none"], &fields[..]].concat());
    let samples = |line: &str| line.split_whitespace().next().and_then(|text| text.parse::<usize>().ok()).unwrap_or(0);
    let is_named = |line: &&str| line.contains("[.] last_line_is_hot_");
    let at_hot: usize = report.lines().filter(|line| is_hot(line)).filter(is_named).map(samples).sum();
    let truth = &recorded.truth;
    let is_at_hot = |moment: &&truth::Moment| {
        let code = truth.code_at(moment.ip, moment.time).map(|index| &truth.codes[index]);
        let code = code.filter(|code| code.name.starts_with("last_line_is_hot_"));
        code.is_some_and(|code| code.lines.last().is_some_and(|line| line.0 <= moment.ip - code.addr))
    };
    let taken = truth.moments.iter().flatten().filter(is_at_hot).count();
    assert!(at_hot == taken && taken > 0, "{at_hot} of {taken} samples in hot lines:\n{report}");

    let shown = recorded.perf("annotate", &["--stdio", "--stdio-color", "never", "-s", "last_line_is_hot_0"]);
    assert!(shown.contains("burn; end last_line_is_hot_0"), "the source is not shown:\n{shown}");
    let counted = shown.lines().filter_map(|line| line.split(" : ").next()?.trim().parse::<f64>().ok()).sum::<f64>();
    assert!(counted > 99.0, "samples at instructions:\n{shown}");
}

/// Functions that have been inlined are frames by `perf script` and `perf report`, each with its own place in the source; also in code
/// that has been moved, in a file that has got another name, and in a forked child.
#[test]
fn inlined_functions() {
    for memory in ["created", "adopted"] {
        let recorded = Recorded::of(for_tables(), "region-inlined", &[&format!("memory={memory}")], TABLES);
        recorded.check();
        let source = std::fs::read_to_string(&recorded.truth.paths["source"]).expect("source");
        let line_of = |text: String| source.lines().position(|line| line.trim() == text).expect("line") + 1;
        let place = |text: &str, number: &str| format!(":{}", line_of(format!("{text} holder_{number}")));

        let text = recorded.perf("script", &["--ns", "-F", &format!("{},srcline", script::FIELDS)]);
        let (mut right, mut wrong) = (0, Vec::new());
        let (mut files, mut places) = (BTreeSet::new(), BTreeSet::new());
        let truth = &recorded.truth;
        let moments: BTreeMap<u64, &truth::Moment> = truth.moments.iter().flatten().map(|m| (m.time, m)).collect();
        for sample in text.split("\n\n").filter(|sample| !sample.is_empty()) {
            let header = script::parse(sample.lines().next().unwrap_or_default()).expect("header");
            let moment = moments[&header[0].time];
            let code = truth.code_at(moment.ip, moment.time).map(|index| &truth.codes[index]);
            let Some(code) = code.filter(|code| code.name.starts_with("holder_")) else { continue };
            // The last line is the inlined function's, and that before the one of the function into which it was inlined.
            let [.., (outer, ..), (inner, ..)] = code.lines[..] else { panic!("{code:?}") };
            let offset = moment.ip - code.addr;
            let depth = usize::from(offset >= outer) + usize::from(offset >= inner);
            // Of each frame a line, and one for its place in the source.
            let lines: Vec<&str> = sample.lines().skip(1).map(str::trim).collect();
            let fields: Vec<&str> = lines[2 * depth].split_whitespace().collect();
            let number = code.name.trim_start_matches("holder_");
            let is_frame = |depth: usize, name: String, place: String| {
                lines[2 * depth].contains(&name) && lines[2 * depth + 1].ends_with(&place)
            };
            let inlined = |place: String| place + " (inlined)";
            let is_outer = |at| is_frame(at, format!(" outer_{number}"), inlined(place("go on", number)));
            let is_inner = || is_frame(0, format!(" inner_{number}"), inlined(place("burn; end", number)));
            let is_whole = match depth {
                0 => true,
                1 => is_outer(0),
                _ => is_inner() && is_outer(1),
            };
            let called_at = if depth == 0 { String::new() } else { place("begin", number) };
            if is_whole && is_frame(depth, format!(" holder_{number} "), called_at) {
                right += 1;
                files.insert(fields[2].to_owned());
                places.insert((number.to_owned(), u64::from_str_radix(fields[0], 16).expect("address") / 4096));
            } else {
                wrong.push(sample);
            }
        }
        println!("{memory}: {right} right, {} wrong, in {files:?} at {places:x?}", wrong.len());
        assert!(right > 50 && wrong.is_empty(), "{memory}: {right} right:\n{}", wrong.join("\n\n"));
        assert!(files.len() >= 3, "generations and the child have files of their own: {files:?}");
        assert!(places.iter().filter(|(number, _)| number == "0").count() >= 2, "moved: {places:x?}");

        let folded = ["--stdio", "-q", "--no-children", "--inline", "-g", "folded,0,caller", "--percent-limit", "0"];
        let report = recorded.perf("report", &folded);
        for number in 0..4 {
            let expected = format!("holder_{number};outer_{number} (inlined);inner_{number} (inlined)");
            assert!(report.contains(&expected), "{expected} in\n{report}");
        }
    }
}

/// The files of a recording, copied to another place, are all that a report needs.
#[test]
fn copied_elsewhere() {
    let mut recorded = Recorded::of(for_tables(), "region-adopted", &[], TABLES);
    let root = recorded.dir.join("copy");
    let printed =
        script::parse(&recorded.perf("script", &["--ns", "--no-inline", "-F", script::FIELDS])).expect("script");
    let mut paths: Vec<&str> =
        printed.iter().flat_map(|sample| &sample.frames).map(|frame| frame.dso.as_str()).collect();
    paths.sort_unstable();
    paths.dedup();
    let mut regions = 0;
    for path in paths.into_iter().filter(|path| path.starts_with('/') && Path::new(path).exists()) {
        let copy = root.join(&path[1..]);
        std::fs::create_dir_all(copy.parent().expect("directory")).expect("directory of the copy");
        std::fs::copy(path, copy).expect("copy");
        if script::is_region(path) {
            std::fs::remove_file(path).expect("remove the region's file");
            regions += 1;
        }
    }
    assert!(regions >= 1, "no file of a region");
    recorded.check_is(|names| names < 10.0);
    recorded.options = vec!["--symfs".into(), root.display().to_string()];
    recorded.check();
}

// ------------------------------------------------------------------------------------------------ the files

/// What lives is in the file, with name, code and unwind table, in the words of other people's tools; while the process lives, and
/// when it has been killed.
#[test]
fn files_are_sound() {
    for (scenario, memory) in [
        ("packed-down", "created"),
        ("last-line", "created"),
        // With lines, and handed over without bytes or for good.
        ("last-line", "adopted"),
        ("ways-to-hand-over", "adopted"),
        ("region-adopted", "plain"),
        ("region-reused", "plain"),
        ("region-inlined", "created"),
    ] {
        let mut running = Running::start(scenario, &[&format!("memory={memory}"), "hold=1", "seconds=0.2"]);
        running.wait_for("done");
        let truth = running.truth();
        let files = elf::files_of(running.pid());
        assert!(!files.is_empty());
        let found: usize = files.iter().map(|file| file.check(&truth, running.pid())).sum();
        let living = truth.codes.iter().filter(|code| code.to == u64::MAX).count();
        assert_eq!(found, living, "pieces of code that live, in {scenario}");
        running.kill();
        for file in &files {
            assert_eq!(std::fs::read(&file.path).expect("file of a killed process"), file.bytes, "{scenario}");
        }
    }
}

/// A process that is killed while it registers code: what was registered a moment before is in the file, up to some piece without
/// a gap, and the tables are whole.
#[test]
fn killed_while_it_registers() {
    let mut running = Running::start("many", &["memory=created", "count=100000", "seconds=30", "wait=1"]);
    running.wait_for("ready");
    running.go();
    let wait_for = |is_so: &dyn Fn(&[elf::File]) -> bool| {
        let mut files = Vec::new();
        wait_until("symbols in the file", || {
            files = elf::files_of(running.pid());
            is_so(&files)
        });
        files
    };
    let alive = wait_for(&|files| files.iter().any(|file| file.symbols().len() > 100));
    wait_for(&|files| files[0].symbols().len() > alive[0].symbols().len());
    running.kill();
    let [alive] = &alive[..] else { panic!("{} files", alive.len()) };
    let dead = elf::File::read(&alive.path);
    // `cold_17`, `hot_20` and so on.
    let mut numbers: Vec<usize> = dead
        .symbols()
        .iter()
        .map(|symbol| symbol.name.split('_').nth(1).expect("number").parse().expect("number"))
        .collect();
    numbers.sort_unstable();
    println!("{} names while it lived, {} when it was dead", alive.symbols().len(), numbers.len());
    assert!(alive.symbols().len() > 100 && numbers.len() > alive.symbols().len(), "what came later is there too");
    assert!(numbers.iter().copied().eq(0..numbers.len()), "some are missing");
    dead.check_tables();
}

/// `jitsym clean` removes the files of processes that are dead, of all generations, and no others. In its own directory, since
/// those in /tmp are wanted by whoever reads a recording just now.
#[test]
fn files_of_dead_processes_are_removed() {
    let dir = crate::support::fresh_dir("clean");
    let dir = dir.to_str().expect("directory");
    let files_of = |pid: u32| -> Vec<String> {
        let names = std::fs::read_dir(dir).expect("directory").flatten();
        let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| script::is_region(name) && name.contains(&format!("-{pid}-"))).collect()
    };
    let mut dead = Running::start("region-reused", &[&format!("dir={dir}"), "hold=1", "seconds=0.1"]);
    dead.wait_for("done");
    let (pid, alive) = (dead.pid(), files_of(dead.pid()));
    assert!(alive.len() > 1, "a region of several generations has several files: {alive:?}");
    let clean = |dry_run: &[&str]| {
        let mut command = perf::command(tool());
        stdout(&run(command.args(["clean", "--dir", dir]).args(dry_run)))
    };
    clean(&[]);
    assert_eq!(files_of(pid).len(), alive.len(), "files of a living process");
    dead.kill();
    let said = clean(&["--dry-run"]);
    assert!(files_of(pid).iter().all(|name| said.contains(name.as_str())), "{said}");
    assert_eq!(files_of(pid).len(), alive.len(), "--dry-run");
    clean(&[]);
    assert_eq!(files_of(pid), Vec::<String>::new());
}

// ------------------------------------------------------------------------------------------------ the calls

const CALLS: &[&str] = &["c-tests/regions/region_calls.c"];
const ALLOC: &[&str] = &["c-tests/regions/alloc_calls.c"];
const HOST: &[&str] = &["c-tests/regions/region_host.c"];

/// Runs that program in its own directory; it says what is wrong.
fn calls(program: &Path, name: &str) {
    let dir = crate::support::fresh_dir(name);
    let mut command = perf::command(program);
    let output = run(command.arg(&dir));
    assert_eq!((&*stdout(&output), &*output.stderr), ("ok\n", &b""[..]), "{}", describe(&command, &output));
}

/// What is refused and how, what memory regions are, and that adopted memory is what it was.
#[test]
fn calls_and_memory() {
    calls(&compile("gcc", CALLS, Link::Shared, &["-std=gnu11", "-O1"], "region_calls"), "calls");
}

#[test]
fn calls_and_memory_statically_linked_and_sanitized() {
    let flags = ["-std=gnu11", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    calls(&compile("gcc", CALLS, Link::Static, &flags, "region_calls_sanitized"), "calls-sanitized");
    calls(&compile("gcc", ALLOC, Link::Static, &flags, "alloc_calls_sanitized"), "alloc-sanitized");
}

/// What the allocator refuses and how, and what memory it gives, on several threads and over forks.
#[test]
fn allocator() {
    let program = compile("gcc", ALLOC, Link::Shared, &["-std=gnu11", "-O1"], "alloc_calls");
    calls(&program, "alloc");
    on_tmpfs(&program, "noexec", "no-file");
    on_tmpfs(&program, "size=2m", "full");
}

/// What was on its way to the file of a region comes to the other files, and of what these cannot say no trace.
#[test]
fn a_record_that_is_left_behind_is_recovered() {
    let program = compile("gcc", CALLS, Link::Shared, &["-std=gnu11", "-O1"], "region_calls_left");
    let dir = crate::support::fresh_dir("left-behind");
    let pid = stdout(&run(perf::command(&program).arg(&dir).arg("leave-one"))).trim().to_owned();
    let spools = format!("{}-spools", dir.display());
    run(perf::command(tool()).args(["recover", "--dir", &spools, &pid]));
    assert_eq!(crate::support::checker::assert_all_sound(&dir, &[]), 2);
    let dump = dir.join(format!("jit-{pid}.dump"));
    let printed = stdout(&run(perf::command(tool()).arg("dump").arg(&dump)));
    assert!(printed.contains("left_behind") && printed.contains("/left.toy:7"), "{printed}");
}

/// What regions must never do to their host: change what it executes, end it, keep it waiting, take its descriptors.
#[test]
fn the_host_lives() {
    let program = compile("gcc", HOST, Link::Shared, &["-std=gnu11", "-O1"], "region_host");
    calls(&program, "host");
    on_tmpfs(&program, "size=2m", "full");
}

/// Regions leave room for the heap, leave the host's memory in its holes alone, and keep what the host has asked the kernel for.
#[test]
fn the_hosts_memory_stays_the_hosts() {
    let source = &["c-tests/regions/host_memory.c"];
    calls(&compile("gcc", source, Link::Shared, &["-std=gnu11", "-O1"], "host_memory"), "host-memory");
    // A program at a fixed address has little room below it.
    let program = compile("gcc", source, Link::Shared, &["-std=gnu11", "-O1", "-no-pie"], "host_memory_fixed");
    let dir = crate::support::fresh_dir("host-memory-fixed");
    assert_eq!(stdout(&run(perf::command(&program).arg(&dir).arg("heap"))), "ok\n");
}

/// Probes on code by its name. The kernel takes a probe on the program itself, which shows that probes work here. In memory of two
/// views, and in memory that is writable, probes are never hit. In all other memory the kernel refuses them. All programs go on and
/// run the right code.
#[test]
fn probes_do_no_harm() {
    let program = compile("gcc", &["c-tests/regions/probed.c"], Link::Shared, &["-std=gnu11", "-O1"], "probed");
    assert_eq!(probed(&program, "program", "control"), "1000");
    for kind in ["two-views", "writable"] {
        assert_eq!(probed(&program, kind, "probed"), "0", "{kind}");
    }
    for kind in ["one-view", "adopted"] {
        let said = probed(&program, kind, "probed");
        assert!(said.contains("524"), "{kind}: {said}");
    }
}

/// Returns how often a probe was hit, or what perf says if the kernel refuses the probe.
fn probed(program: &Path, kind: &str, function: &str) -> String {
    // $1 is the program, $2 its directory, $3 the kind, $4 the function.
    const SCRIPT: &str = r#"
        grep -q ' /sys/kernel/tracing ' /proc/mounts || mount -t tracefs none /sys/kernel/tracing
        LD_BIND_NOW=1 "$1" "$2" "$3" > "$2"/said &
        pid=$!
        while ! grep -q / "$2"/said; do kill -0 $pid; done
        probe=jitsym_$pid:probed
        trap 'perf probe -q -d $probe' EXIT
        perf probe -q -x "$(head -n 1 "$2"/said)" "$probe=$4"
        calls='echo > "$0"/go; read nothing < "$0"/done'
        perf stat -x , -o "$2"/count -e $probe -p $pid timeout 60 sh -c "$calls" "$2" 2> "$2"/refused ||
            timeout 60 sh -c "$calls" "$2"
        wait $pid
    "#;
    let dir = fresh_dir(format!("probed-{kind}"));
    let mut unshare = perf::command("unshare");
    unshare.args(["-m", "sh", "-euc", SCRIPT, "sh"]).arg(program).arg(&dir).args([kind, function]);
    let output = run(&mut unshare);
    let read = |name| std::fs::read_to_string(dir.join(name)).unwrap_or_default();
    assert!(read("said").ends_with("ok\n"), "{kind}: {}", describe(&unshare, &output));
    let count = read("count")
        .lines()
        .find_map(|line| line.contains("probed").then(|| line.split(',').next().map(String::from)));
    count.flatten().filter(|count| count.parse::<u64>().is_ok()).unwrap_or_else(|| read("refused"))
}

/// A child that is forked in the middle of an adoption keeps what it executes, and the parent adopts the memory all the same.
#[test]
fn forks_in_the_middle_of_an_adoption() {
    let program = &["c-tests/regions/forked_meanwhile.c"];
    calls(&compile("gcc", program, Link::Shared, &["-std=gnu11", "-O1"], "forked_meanwhile"), "forked-meanwhile");
}

/// Parent and child never have memory with two views in common, and a child has the bytes and the names of the moment of the fork.
#[test]
fn forks_part_the_views() {
    let program = &["c-tests/regions/forked_views.c"];
    calls(&compile("gcc", program, Link::Shared, &["-std=gnu11", "-O1"], "forked_views"), "forked-views");
}

/// A child shares the pages of adopted memory with its parent until it registers code there, or the parent's file no longer suits it.
#[test]
fn forks_share_pages() {
    let program = &["c-tests/regions/forked_pages.c"];
    calls(&compile("gcc", program, Link::Shared, &["-std=gnu11", "-O1"], "forked_pages"), "forked-pages");
}

/// Which memory is adopted by itself, when, and what is said of the rest.
#[test]
fn the_right_memory_is_adopted() {
    let adoption = &["c-tests/regions/adoption.c"];
    calls(&compile("gcc", adoption, Link::Shared, &["-std=gnu11", "-O1"], "adoption"), "adoption");
}

/// Directories whose files must not be executed, or without room for them: regions are memory all the same.
#[test]
fn no_file_can_be_had() {
    let program = compile("gcc", CALLS, Link::Shared, &["-std=gnu11", "-O1"], "region_calls_no_file");
    for options in ["noexec", "size=300k"] {
        on_tmpfs(&program, options, "no-file");
    }
}

/// Runs a part of such a program in a file system in memory.
fn on_tmpfs(program: &Path, options: &str, part: &str) {
    let dir = crate::support::fresh_dir("tmpfs");
    let script = format!("mount -t tmpfs -o {options},mode=1777 none \"$2\" && exec \"$1\" \"$2\" {part}");
    let mut unshare = perf::command("unshare");
    unshare.args(["-rm", "sh", "-c", &script, "sh"]).arg(program).arg(&dir);
    assert_eq!(stdout(&run(&mut unshare)), "ok\n", "{options}");
}
