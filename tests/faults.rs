//! Faults by the kernel's own means: small, read-only and noexec file systems in a mount namespace of their own, process 1 of
//! a pid namespace, resource limits, sandboxes, allocations that fail; and `jitsym clean` among files that it must not touch.
//!
//! Namespaces take root; another user's run says what it leaves out.

use crate::support::*;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{symlink, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

const MAP: u32 = 1;
const JITDUMP: u32 = 2;

fn program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compile("gcc", &["c-tests/faults/faults.c"], Link::Shared, &["-O1"], "faults"))
}

/// Runs the program in a mount namespace, with a tmpfs mounted on its directory after what `prepare` does to that (`$1`).
fn on_tmpfs(name: &str, options: &str, prepare: &str, arguments: &[&str]) -> Option<String> {
    if !may_unshare(&["-m"]) {
        return None;
    }
    let dir = fresh_dir(name);
    let script = format!(
        "mount -t tmpfs -o {options} none \"$1\"; {prepare}; dir=$1; shift; exec '{}' \"$dir\" \"$@\"",
        program().display()
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-euc", &script, "sh"]).arg(&dir).args(arguments);
    let output = run(command.env("JITSYM_SPOOL", "off"));
    fs::remove_dir_all(&dir).expect("remove the directory");
    Some(ended_well(&output))
}

/// What a program has printed before "ok".
fn ended_well(output: &Output) -> String {
    let text = stdout(output);
    let said = text.strip_suffix("ok\n");
    said.unwrap_or_else(|| panic!("{output:?}")).trim_end().to_string()
}

/// A disk that fills up, and has room again later: whole files all the time, and everything in them in the end.
#[test]
fn full_disk_and_back() {
    for size in ["600k", "2m"] {
        let prepare = "head -c 300000 /dev/zero > \"$1\"/ballast";
        on_tmpfs("full", &format!("size={size}"), prepare, &["full-and-back"]);
        // A ballast large enough to hold all that comes after it.
        on_tmpfs("full-large", "size=8m", "head -c 7500000 /dev/zero > \"$1\"/ballast", &["full-and-back"]);
    }
}

/// File systems on which nothing can be made, or nothing executable mapped.
#[test]
fn file_systems_that_refuse() {
    let both = (MAP | JITDUMP).to_string();
    let cases = [
        ("read-only", "mount -o remount,ro \"$1\"", &*both, "Read-only file system"),
        ("filled", "head -c 1000000 /dev/zero > \"$1\"/ballast 2>/dev/null || true", "7", "No space left on device"),
        ("noexec", "mount -o remount,noexec \"$1\"", "2", "noexec"),
        ("no-inodes", "mount -o remount,nr_inodes=1 \"$1\"", &*both, "No space left on device"),
    ];
    for (name, prepare, failed, reason) in cases {
        let Some(said) = on_tmpfs(name, "size=64k", prepare, &["sinks", failed]) else { return };
        assert!(said.contains(reason) && said.contains(name), "{name}: {said}");
    }
}

/// A container command: the program as process 1, with `/tmp` and all else shared with other containers.
fn container(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["-p", "-f", "-m", "--mount-proc"]).arg(program()).arg(dir);
    command.args(arguments).env("JITSYM_SPOOL", "off");
    command
}

/// Process 1 of a container finds the files of process 1 of an earlier one, and replaces them; but not those of one that lives.
#[test]
fn process_1_again_and_again() {
    if !may_unshare(&["-p", "-f", "-m"]) {
        return;
    }
    let dir = fresh_dir("containers");
    let mut inodes = Vec::new();
    let mut readers = Vec::new();
    for _ in 0..3 {
        ended_well(&run(&mut container(&dir, &["sinks", "0"])));
        for name in ["perf-1.map", "jit-1.dump"] {
            inodes.push(fs::metadata(dir.join(name)).expect("file").ino());
            // Whoever can read a file can lock it in these two ways, which is no sign of life.
            let reader = fs::File::open(dir.join(name)).expect("file");
            assert!(lock_range(&reader, libc::F_RDLCK));
            // SAFETY: the descriptor is open.
            assert_eq!(unsafe { libc::flock(reader.as_raw_fd(), libc::LOCK_EX) }, 0);
            readers.push(reader);
        }
    }
    assert_eq!(fs::read_dir(&dir).expect("directory").count(), 2, "nothing else is left");
    let mut holder = container(&dir, &["hold"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start");
    let mut said = BufReader::new(holder.stdout.take().expect("output")).lines();
    while said.next().expect("a line").expect("text") != "holding" {}
    let held = ["perf-1.map", "jit-1.dump", "jit-1-0.so"];
    let before = held.map(|name| fs::read(dir.join(name)).expect("file"));
    let refused = ended_well(&run(&mut container(&dir, &["sinks", &MAP.to_string()])));
    assert!(refused.contains("living process"), "{refused}");
    let after = held.map(|name| fs::read(dir.join(name)).expect("file"));
    assert!(before == after);
    // What lives in another container is not cleaned either.
    let cleaned = clean(&dir, &[]);
    assert_eq!(cleaned.iter().filter(|line| line.starts_with("kept ")).count(), held.len() + 1, "{cleaned:?}");
    for name in held.into_iter().chain(["jit-01.dump"]) {
        let kept = format!("kept {}", dir.join(name).display());
        assert!(cleaned.iter().any(|line| line.starts_with(&kept)), "{name}: {cleaned:?}");
    }
    drop(holder.stdin.take());
    assert!(holder.wait().expect("end").success());
    ended_well(&run(&mut container(&dir, &["sinks", "0"])));
    fs::remove_dir_all(&dir).expect("remove the directory");
}

/// The kinds of `/proc` that a process may have (c-tests/faults/no_proc.c), all at once.
fn with_each_proc(scene: &str) {
    if !may_unshare(&["-p", "-f", "-m", "-T"]) {
        return;
    }
    let program = compile("gcc", &["c-tests/faults/no_proc.c"], Link::Shared, &["-O1"], &format!("no_proc-{scene}"));
    std::thread::scope(|scope| {
        for kind in ["shown", "none", "forbidden", "elsewhere", "outer", "hidden", "unlisted", "other-time"] {
            if kind == "unlisted" && scene == "spools" {
                // Those are found in a list, too.
                continue;
            }
            let program = &program;
            scope.spawn(move || {
                // Where another user can go, too.
                let dir = std::env::temp_dir().join(format!("jitsym-proc-{kind}-{scene}-{}", std::process::id()));
                fs::create_dir_all(&dir).expect("directory");
                let mut command = Command::new(program);
                let output = run(command.arg(&dir).args([kind, scene]));
                assert_eq!(ended_well(&output), "", "{kind}: {output:?}");
                assert!(output.stderr.is_empty(), "{kind}: {output:?}");
                fs::remove_dir_all(&dir).expect("remove the directory");
                fs::remove_dir_all(format!("{}-spools", dir.display())).expect("remove the spools");
            });
        }
    });
}

/// A process ends with its last thread, whichever that is, where `/proc` shows its threads, and not before. Elsewhere it stays.
#[test]
fn the_last_thread_by_proc() {
    with_each_proc("last-thread");
}

/// Whatever `/proc` shows, files of other runtimes in the process are neither removed nor written over.
#[test]
fn files_of_others_are_known_without_proc() {
    with_each_proc("files");
}

/// Whatever `/proc` shows, the spool of a living process stays.
#[test]
fn the_living_are_known_without_proc() {
    with_each_proc("spools");
}

/// Limits, with either library.
#[test]
fn limits() {
    run_program("limits", Link::Shared, &[]);
    run_program("limits", Link::Static, &[]);
    // The program leaves that out.
    is_root("become another user");
}

/// A process that may do more than others of its user, in every way to come to that: no file is a way into it.
#[test]
fn more_rights() {
    run_program("rights", Link::Shared, &[]);
    if !is_root("have more rights") {
        return;
    }
    let program = compile("gcc", &["c-tests/faults/rights.c"], Link::Shared, &["-O1"], "rights-started");
    let dir = fresh_dir("rights-started");
    let output = run_privileged(&program, |command| _ = command.arg(&dir).arg("started"));
    assert_eq!(ended_well(&output), "", "{output:?}");
}

/// Sandboxes that refuse a system call.
#[test]
fn sandboxes() {
    run_program("sandbox", Link::Shared, workload());
}

fn workload() -> &'static [&'static str] {
    if thorough() {
        &[]
    } else {
        &["light"]
    }
}

fn run_program(name: &str, link: Link, workload: &[&str]) {
    let source = format!("c-tests/faults/{name}.c");
    let name = format!("{name}-{link:?}");
    let program = compile("gcc", &[&source], link, &["-O1"], &name);
    // Where another user can go, too.
    let dir = std::env::temp_dir().join(format!("jitsym-{name}-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("directory");
    let output = run(Command::new(&program).arg(&dir).args(workload));
    assert_eq!(ended_well(&output), "", "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    fs::remove_dir_all(&dir).expect("remove the directory");
    fs::remove_dir_all(format!("{}-spools", dir.display())).expect("remove the spools");
}

/// Every allocation fails once, alone and with all that follow: no abort, and statuses.
#[test]
fn out_of_memory() {
    let program = compile("gcc", &["c-tests/faults/out_of_memory.c"], Link::Shared, &["-O1"], "out_of_memory");
    let dir = fresh_dir("memory");
    let output = run(Command::new(&program).arg(&dir).args(workload()));
    assert_eq!(ended_well(&output), "", "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

/// Runs `jitsym clean` on a directory, and returns what it says.
fn clean(dir: &Path, options: &[&str]) -> Vec<String> {
    let mut command = Command::new(tool());
    command.arg("clean").args(options).arg("--dir").arg(dir);
    stdout(&run(&mut command)).lines().map(String::from).collect()
}

/// The pid of a process that has ended.
fn dead_pid() -> u32 {
    let mut child = Command::new("true").spawn().expect("start");
    child.wait().expect("end");
    child.id()
}

/// Writes a file as the library does: marked, or with the first bytes of a spool.
fn write_ours(path: &Path) {
    let is_spool = path.extension().is_some_and(|end| end == "spool");
    fs::write(path, if is_spool { "jitspool" } else { "x" }).expect("write");
    fs::set_permissions(path, fs::Permissions::from_mode(if is_spool { 0o600 } else { 0o1644 })).expect("mode");
}

/// Files of dead processes go, and nothing else.
#[test]
fn clean_removes_what_is_dead_and_ours() {
    let dir = fresh_dir("clean");
    let (dead, alive) = (dead_pid(), std::process::id());
    let path = |name: String| dir.join(name);
    let write = |name: String| {
        write_ours(&dir.join(&name));
        name
    };
    let mut gone: Vec<String> = [
        format!("perf-{dead}.map"),
        format!("jit-{dead}.dump"),
        format!(".perf-{dead}.map.new"),
        format!(".jit-{dead}.dump.new"),
        format!(".perf-{dead}.map.0123456789abcdef.new"),
        format!(".jit-{dead}.dump.0123456789abcdef.new"),
        format!("jitsym-{dead}-1f-2e.spool"),
        format!("jit-{dead}-0.so"),
        format!("jit-{dead}-12.3.so"),
        format!("jitted-{dead}-r0.so"),
        format!("jitted-{dead}-r12.3.so"),
    ]
    .map(write)
    .into();
    let mut kept: Vec<String> = [
        format!("perf-{alive}.map"),
        format!("jit-{alive}.dump"),
        format!("jitsym-{alive}-1f-2e.spool"),
        format!("jit-{alive}-0.so"),
        format!("jitted-{alive}-r0.1.so"),
        format!("jit-{dead}-0.1.2.so"),
        format!("libjit-{dead}-0.so"),
        format!("perf-{dead}.map.old"),
        format!("perf-{dead}.data"),
        format!("jitted-{dead}-1.so"),
        format!("my-perf-{dead}.map"),
        "perf-.map".into(),
        "jit-1x.dump".into(),
        "precious".into(),
    ]
    .map(write)
    .into();
    // Not what is only called so: a file of another runtime, or of the user.
    let unmarked = dead_pid();
    let names = ["perf-PID.map", "jit-PID.dump", ".jit-PID.dump.new", "jit-PID-0.so", "jitsym-PID-1f-2e.spool"];
    for name in names.map(|name| name.replace("PID", &unmarked.to_string())) {
        fs::write(path(name.clone()), "precious").expect("write");
        kept.push(name);
    }
    // Not through a link, and not what has two names.
    let other = dead_pid();
    symlink(path("precious".into()), path(format!("perf-{other}.map"))).expect("link");
    fs::hard_link(path("precious".into()), path(format!("jit-{other}.dump"))).expect("link");
    fs::create_dir(path(format!("jit-0{other}.dump"))).expect("directory");
    kept.extend([format!("perf-{other}.map"), format!("jit-{other}.dump"), format!("jit-0{other}.dump")]);
    // Not what somebody has open, whatever the pid says; nor what is locked.
    let third = dead_pid();
    kept.extend([write(format!("perf-{third}.map")), write(format!("jit-{third}.dump"))]);
    let open = fs::File::open(path(format!("perf-{third}.map"))).expect("open");
    let holder = fs::File::options().write(true).open(path(format!("jit-{third}.dump"))).expect("open");
    assert!(lock_range(&holder, libc::F_WRLCK));
    // Not what belongs to somebody else.
    let fourth = dead_pid();
    let others = write(format!("perf-{fourth}.map"));
    let is_given = Command::new("chown").arg("65534").arg(path(others.clone())).status().expect("chown").success();
    if is_given { &mut kept } else { &mut gone }.push(others);

    let names = || {
        let entries = fs::read_dir(&dir).expect("directory").map(|entry| entry.expect("entry").file_name());
        let mut names: Vec<String> = entries.map(|name| name.into_string().expect("name")).collect();
        names.sort();
        names
    };
    let all = names();
    let planned = clean(&dir, &["--dry-run"]);
    assert_eq!(names(), all, "a dry run removes nothing");
    let done = clean(&dir, &[]);
    kept.sort();
    assert_eq!(names(), kept);
    let mut removed: Vec<&str> = done.iter().filter_map(|line| line.strip_prefix("removed ")).collect();
    let mut would: Vec<&str> = planned.iter().filter_map(|line| line.strip_prefix("would remove ")).collect();
    removed.sort();
    would.sort();
    gone.sort();
    assert_eq!(removed, would);
    let expected: Vec<String> = gone.iter().map(|name| dir.join(name).display().to_string()).collect();
    assert_eq!(removed, expected);
    for reason in ["not a regular file", "hard link", "lives", "locked", "open", "not marked"] {
        assert!(done.iter().any(|line| line.starts_with("kept ") && line.contains(reason)), "{reason}: {done:?}");
    }
    assert!(!is_given || done.iter().any(|line| line.contains("another user")), "{done:?}");
    assert_eq!(fs::read(path("precious".into())).expect("file"), b"x");
    drop((open, holder));
    fs::remove_dir_all(&dir).expect("remove the directory");
}

/// Without `/proc` nobody knows which files are open, and so all of them stay.
#[test]
fn clean_without_proc() {
    if !may_unshare(&["-m"]) {
        return;
    }
    let dir = fresh_dir("clean-blind");
    let name = format!("perf-{}.map", dead_pid());
    write_ours(&dir.join(&name));
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-euc", "umount -l /proc; exec \"$@\"", "sh"]).arg(tool());
    let said = stdout(&run(command.args(["clean", "--dir"]).arg(&dir)));
    assert!(said.starts_with("kept ") && said.contains("without /proc") && dir.join(&name).exists(), "{said}");
    let done = clean(&dir, &[]);
    assert_eq!(done[0], format!("removed {}", dir.join(&name).display()));
    assert!(done.len() == 2 && done[1].starts_with("1 file removed"), "{done:?}");
    fs::remove_dir_all(&dir).expect("remove the directory");
}

/// What a process leaves that was killed goes with it; that of one that runs stays, its spool too.
#[test]
fn clean_after_a_real_process() {
    let dir = fresh_dir("clean-real");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).expect("mode");
    let spools = PathBuf::from(format!("{}-spools", dir.display()));
    let mut hold = Command::new(program());
    hold.arg(&dir).arg("hold");
    let mut holder = hold.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start");
    let mut said = BufReader::new(holder.stdout.take().expect("output")).lines();
    while said.next().expect("a line").expect("text") != "holding" {}
    let count = |dir: &Path| fs::read_dir(dir).expect("directory").count();
    for dir in [&dir, &spools] {
        let said = clean(dir, &[]);
        let (total, files) = said.split_last().expect("totals");
        assert!(!files.is_empty() && files.iter().all(|line| line.starts_with("kept ")), "{said:?}");
        assert_eq!(total, &format!("0 files removed (0 bytes), {} kept", files.len()));
    }
    // Map, jitdump and the file of a region; the spool.
    assert_eq!((count(&dir), count(&spools)), (3, 1));
    holder.kill().expect("kill");
    holder.wait().expect("end");
    clean(&dir, &[]);
    clean(&spools, &[]);
    assert_eq!((count(&dir), count(&spools)), (0, 0));
    fs::remove_dir_all(&dir).expect("remove the directory");
    fs::remove_dir_all(&spools).expect("remove the directory");
}
