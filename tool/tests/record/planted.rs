//! What other users put into the directory of a jitdump: `jitsym record` writes to none of it, and reads no more than files.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{symlink, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use crate::support::{
    compile, fresh_dir, is_root, may_unshare, run, run_to_its_end, serial, stdout, wait_until, Link, TmpFiles,
};
use crate::{jitsym, perf, said};

/// Said when a recording has got objects.
const PUT_IN: &str = "have samples: put in, with files in";

fn planted() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compile("gcc", &["tool/tests/record/planted.c"], Link::None, &["-std=gnu99"], "planted"))
}

/// Records a shell command in which `$0` is the program and `$1` the directory. Returns the pids that the program has printed.
fn record(data: &Path, dir: &Path, script: &str) -> (Vec<u32>, String) {
    let mut command = jitsym(&["record", "-F", "999", "-e", "cpu-clock", "-g", "none", "-o"]);
    command.arg(data).args(["--", "sh", "-euc", script]).arg(planted()).arg(dir).stdin(Stdio::null());
    let output = run_to_its_end(&mut command);
    assert!(output.status.success(), "{output:?}");
    (stdout(&output).lines().map(|line| line.parse().expect("a pid")).collect(), said(&output))
}

/// The paths of the objects of a process, as the recording has them.
fn objects(data: &Path, pid: u32) -> Vec<PathBuf> {
    let events = stdout(&run(perf::perf("script").args(["--show-mmap-events", "-F", "pid", "-i"]).arg(data)));
    let paths = events.lines().filter_map(|line| line.split_whitespace().last());
    let paths: BTreeSet<_> = paths.filter(|path| path.contains(&format!("/jitcode-{pid}-"))).collect();
    paths.into_iter().map(PathBuf::from).collect()
}

/// A file that nobody may write to, and how it is.
struct Victim(PathBuf);

impl Victim {
    fn new(dir: &Path) -> Victim {
        let path = dir.join("victim");
        fs::write(&path, "precious").expect("write");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("mode");
        Victim(path)
    }

    fn is_whole(&self) {
        assert_eq!(fs::read(&self.0).expect("the file"), b"precious");
    }
}

/// `perf inject` writes through a link that lies beside a jitdump. `jitsym record` writes beside the recording, and not through a link
/// there either.
#[test]
fn links_beside_a_jitdump() {
    let _alone = serial();
    let dir = fresh_dir("links");
    let (data, victim) = (dir.join("perf.data"), Victim::new(&dir));
    let script = format!("\"$0\" \"$1\" links '{}'", victim.0.display());
    let (pids, said) = record(&data, &dir, &script);
    let _files = TmpFiles(pids[0]);
    victim.is_whole();
    assert!(said.contains("1 piece of code") && said.contains(PUT_IN), "{said}");
    let objects_of = objects(&data, pids[0]);
    let [object] = &objects_of[..] else { panic!("{objects_of:?}") };
    let own = dir.join("perf.data.objects");
    assert_eq!(object.parent(), Some(&*own));
    assert_eq!(fs::metadata(&own).expect("directory").permissions().mode() & 0o7777, 0o700);
    assert!(fs::read(object).expect("object").starts_with(b"\x7fELF"));
    // In the place of the directory.
    let (other, elsewhere) = (dir.join("other"), dir.join("elsewhere"));
    fs::create_dir(&elsewhere).expect("directory");
    symlink(&elsewhere, dir.join("other.objects")).expect("link");
    let (pids, said) = record(&other, &dir, &script);
    let _others = TmpFiles(pids[0]);
    assert!(said.contains("other.objects: is not a directory") && !said.contains(PUT_IN), "{said}");
    assert!(other.is_file() && objects(&other, pids[0]).is_empty());
    assert_eq!(fs::read_dir(&elsewhere).expect("directory").count(), 0);
    victim.is_whole();
    // The control: perf does follow the link.
    assert!(fs::symlink_metadata(dir.join(format!("jitted-{}-1.so", pids[0]))).expect("link").is_symlink());
    let raw = dir.join("raw");
    let mut shell = perf::perf("record");
    shell.args(["-k", "1", "-e", "cpu-clock", "-o"]).arg(&raw).args([
        "--",
        "sh",
        "-euc",
        "\"$0\" \"$1\" links \"$2\"; :",
    ]);
    let output = run(shell.arg(planted()).arg(&dir).arg(&victim.0).stdin(Stdio::null()));
    let _others = TmpFiles(stdout(&output).trim().parse().expect("a pid"));
    run(perf::perf("inject").arg("--jit").arg("-i").arg(&raw).arg("-o").arg(dir.join("injected")));
    assert!(fs::read(&victim.0).expect("the file").starts_with(b"\x7fELF"), "perf has become careful");
}

/// A FIFO, a device or a link in the place of a jitdump is not opened: it is named, and the other jitdumps are worked in.
#[test]
fn no_jitdump_any_more() {
    let _alone = serial();
    let dir = fresh_dir("no-jitdump");
    let data = dir.join("perf.data");
    let (pids, said) = record(&data, &dir, "for kind in fifo /dev/zero plain; do \"$0\" \"$1\" \"$kind\"; done");
    let _files: Vec<TmpFiles> = pids.iter().map(|&pid| TmpFiles(pid)).collect();
    let line = |pid: u32| format!("{}/jit-{pid}.dump", dir.display());
    assert!(said.contains(&format!("left out: process {}: {} is not a file", pids[0], line(pids[0]))), "{said}");
    assert!(said.contains(&format!("left out: process {}: {} is a symbolic link", pids[1], line(pids[1]))), "{said}");
    assert!(said.contains(&format!("process {}: 1 piece of code in {}", pids[2], line(pids[2]))), "{said}");
    assert!(said.contains(PUT_IN), "{said}");
    assert_eq!(pids.iter().map(|&pid| objects(&data, pid).len()).collect::<Vec<_>>(), [0, 0, 1]);
}

/// The names come from a process in its own mount namespace, where a link may lead anywhere, and nothing is written there.
#[test]
fn in_another_mount_namespace() {
    if !may_unshare(&["-m"]) {
        return;
    }
    let _alone = serial();
    let dir = fresh_dir("namespace");
    let (data, victim) = (dir.join("perf.data"), Victim::new(&dir));
    let inner = dir.join("inner");
    fs::create_dir(&inner).expect("directory");
    let mut unshare = perf::command("unshare");
    unshare.args(["-m", "sh", "-euc", "mount -t tmpfs none \"$1\"; exec \"$0\" \"$1\" links \"$2\""]);
    unshare.arg(planted()).arg(&inner).arg(&victim.0);
    let mut process = unshare.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start");
    let mut line = String::new();
    BufReader::new(process.stdout.take().expect("output")).read_line(&mut line).expect("line");
    let pid: u32 = line.trim().parse().expect("a pid");
    let _files = TmpFiles(pid);
    let mut record = jitsym(&[
        "record",
        "-g",
        "none",
        "-F",
        "999",
        "-e",
        "cpu-clock",
        "--seconds",
        "0.5",
        "-p",
        &pid.to_string(),
        "-o",
    ]);
    let output = run_to_its_end(record.arg(&data));
    let seen = PathBuf::from(format!("/proc/{pid}/root{}", inner.display()));
    let names: Vec<_> = fs::read_dir(seen).expect("directory").map(|entry| entry.expect("entry").file_name()).collect();
    drop(process.stdin.take());
    process.wait().expect("end");
    victim.is_whole();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(output.status.success() && said(&output).contains(PUT_IN), "{output:?}");
    assert_eq!(objects(&data, pid).len(), 1);
}

/// Root records a process of another user: its jitdump is used, and that of a third user is not.
#[test]
fn of_another_user() {
    if !is_root("run a program as another user") {
        return;
    }
    let _alone = serial();
    let dir = fresh_dir("user");
    // Other users can get there.
    let open = std::env::temp_dir().join(format!("jitsym-user-{}", std::process::id()));
    fs::create_dir(&open).expect("directory");
    fs::set_permissions(&open, Permissions::from_mode(0o777)).expect("mode");
    let program = open.join("planted");
    fs::copy(planted(), &program).expect("copy");
    let own = format!("exec setpriv --reuid 54321 --clear-groups '{}' \"$1\" plain", program.display());
    // Another file than the process had mapped.
    let third = "p=$(\"$0\" \"$1\" plain); echo $p; cd \"$1\" && cp jit-$p.dump new && chown 12345 new && mv -f new jit-$p.dump";
    for (script, is_used) in [(&*own, true), (third, false)] {
        let data = dir.join("perf.data");
        let (pids, said) = record(&data, &open, script);
        let _files = TmpFiles(pids[0]);
        assert_eq!(said.contains(PUT_IN), is_used, "{said}");
        assert_eq!(said.contains("is another file than the process had"), !is_used, "{said}");
        assert_eq!(objects(&data, pids[0]).len(), usize::from(is_used));
    }
    fs::remove_dir_all(open).expect("remove");
}

/// Only a file is replaced by a recording, and nothing else gets another name.
#[test]
fn a_place_that_is_no_file() {
    let dir = fresh_dir("place");
    let path = |name: &str| dir.join(name);
    run(Command::new("mkfifo").arg(path("fifo")));
    symlink("/dev/null", path("null")).expect("link");
    fs::create_dir(path("dir")).expect("directory");
    fs::create_dir(path("before.old")).expect("directory");
    fs::write(path("before"), "a recording").expect("write");
    let names = || {
        let mut names: Vec<_> =
            fs::read_dir(&dir).expect("directory").map(|entry| entry.expect("entry").file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    for (name, what) in [("fifo", "a FIFO"), ("null", "a device"), ("dir", "a directory"), ("before", "a directory")] {
        let output = run_to_its_end(jitsym(&["record", "-o"]).arg(path(name)).args(["--", "true"]));
        let text = said(&output);
        assert_eq!(output.status.code(), Some(125), "{name}: {text}");
        assert!(text.contains(&format!("is {what}, and a recording goes to a file")), "{name}: {text}");
        assert_eq!(names(), before, "{name}");
    }
    assert!(fs::symlink_metadata(path("fifo")).expect("FIFO").file_type().is_fifo());
    assert_eq!(fs::read(path("before")).expect("file"), b"a recording");
}

/// A flame graph replaces a link, and is not written through one.
#[test]
fn a_flame_graph_through_a_link() {
    let _alone = serial();
    let dir = fresh_dir("flame");
    let (svg, victim) = (dir.join("hot.svg"), Victim::new(&dir));
    symlink(&victim.0, &svg).expect("link");
    let mut command = jitsym(&["record", "-F", "999", "-e", "cpu-clock", "-g", "none", "-o"]);
    command.arg(dir.join("perf.data")).arg("--flamegraph").arg(&svg);
    // It ends when it has worked for a second.
    command.args(["--", "sh", "-c", "ulimit -t 1; while :; do :; done"]);
    let text = said(&run_to_its_end(&mut command));
    victim.is_whole();
    assert!(fs::symlink_metadata(&svg).expect("flame graph").is_file(), "{text}");
    assert!(fs::read(&svg).expect("flame graph").starts_with(b"<?xml"), "{text}");
    assert_eq!(fs::read_dir(&dir).expect("directory").count(), 3, "{text}");
}

/// Ends the recording of a command at a moment, and returns how it went. The moment is that in which `jitsym record` calls perf with a
/// subcommand for the time that is given: a script stands before perf, and sends the signal.
fn stopped(dir: &Path, signal: &str, subcommand: &str, time: usize) -> Output {
    let script = dir.join("perf");
    let count = dir.join("count");
    let text = format!(
        "#!/bin/sh\nif [ \"$1\" = {subcommand} ]; then\n  echo >>'{0}'\n  [ $(wc -l <'{0}') != {time} ] || kill -{signal} $PPID\nfi\nexec perf \"$@\"\n",
        count.display()
    );
    fs::write(&script, text).expect("script");
    fs::set_permissions(&script, Permissions::from_mode(0o755)).expect("executable");
    let mut command = jitsym(&["record", "-e", "cpu-clock", "-g", "none", "--perf"]);
    command.arg(&script).arg("-o").arg(dir.join("out/perf.data")).arg("--").arg(planted()).arg(dir).arg("plain");
    run_to_its_end(command.stdin(Stdio::null()))
}

/// Whenever somebody stops it, no other file than the recording is left; and from the moment when there is one, it is that.
#[test]
fn signals_leave_nothing_else() {
    let _alone = serial();
    for (signal, number) in [("HUP", 1), ("INT", 2), ("TERM", 15)] {
        for (moment, is_made) in [("record", false), ("script", true), ("injection", true)] {
            let dir = fresh_dir("stopped");
            fs::create_dir(dir.join("out")).expect("directory");
            let output = match moment {
                "injection" => stopped_within(&dir, signal),
                subcommand => stopped(&dir, signal, subcommand, 1),
            };
            let what = format!("{signal} at {moment}: {output:?}");
            assert_eq!(output.status.code(), Some(128 + number), "{what}");
            let left: Vec<_> =
                fs::read_dir(dir.join("out")).expect("directory").map(|entry| entry.expect("entry").path()).collect();
            assert_eq!(left.len(), usize::from(is_made), "{what}: {left:?}");
            if is_made {
                run(perf::perf("script").args(["--show-mmap-events", "-F", "pid", "-i"]).arg(&left[0]));
            }
        }
    }
}

/// Stops it when it makes the directory for objects: of its own directories, the fourth one.
fn stopped_within(dir: &Path, signal: &str) -> Output {
    let mut command = perf::command("strace");
    command.args(["-o", "/dev/null", "-e", "trace=/^mkdir", "-e", &format!("inject=/^mkdir:signal={signal}:when=4")]);
    let program = jitsym(&[]);
    for (name, value) in program.get_envs() {
        value.map(|value| command.env(name, value));
    }
    command.arg(program.get_program()).args(["record", "-e", "cpu-clock", "-g", "none", "-o"]);
    command.arg(dir.join("out/perf.data")).arg("--").arg(planted()).arg(dir).arg("plain");
    let output = run_to_its_end(command.stdin(Stdio::null()));
    assert!(said(&output).contains(" samples in ") && !said(&output).contains(PUT_IN), "{output:?}");
    output
}

/// A recording that another one replaces stays readable under its new name.
#[test]
fn the_recording_before() {
    let _alone = serial();
    let dir = fresh_dir("before-it");
    let data = dir.join("perf.data");
    let (first, _) = record(&data, &dir, "\"$0\" \"$1\" plain");
    let (second, _) = record(&data, &dir, "\"$0\" \"$1\" plain");
    let _files = [TmpFiles(first[0]), TmpFiles(second[0])];
    for (data, pid) in [(dir.join("perf.data.old"), first[0]), (data, second[0])] {
        let objects = objects(&data, pid);
        assert!(objects.len() == 1 && objects[0].is_file(), "{objects:?}");
        let symbols = stdout(&run(perf::perf("script").args(["-F", "ip,sym", "-i"]).arg(&data)));
        assert!(symbols.contains(" planted\n"), "{symbols}");
    }
}

/// A terminal that goes sends SIGHUP to all that run in it, or somebody sends it to this one alone. The command ends, and the recording
/// is kept.
#[test]
fn a_terminal_that_goes() {
    let _alone = serial();
    for of_all in [false, true] {
        let dir = fresh_dir("terminal");
        let data = dir.join("perf.data");
        let mut command = jitsym(&["record", "-F", "999", "-e", "cpu-clock", "-o"]);
        command.arg(&data).args(["--", "sh", "-c", "ulimit -t 30; echo $$; while :; do :; done"]);
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut record = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start");
        let mut line = String::new();
        BufReader::new(record.stdout.take().expect("output")).read_line(&mut line).expect("line");
        let pid: i32 = line.trim().parse().expect("a pid");
        let group = record.id() as i32;
        // SAFETY: the process is a child that was not waited for; with its number the group of that number is meant.
        assert_eq!(unsafe { libc::kill(if of_all { -group } else { group }, libc::SIGHUP) }, 0);
        let output = record.wait_with_output().expect("end");
        assert!(fs::read(&data).is_ok_and(|file| file.starts_with(b"PERFILE2")), "{of_all}: {}", said(&output));
        wait_until("the end of the command", || !Path::new(&format!("/proc/{pid}")).exists());
        let events = stdout(&run(perf::perf("script").args(["--show-mmap-events", "-F", "pid", "-i"]).arg(&data)));
        assert!(events.contains("PERF_RECORD_MMAP"), "{of_all}: {events}");
        assert_eq!(fs::read_dir(&dir).expect("directory").count(), 1, "{of_all}");
    }
}
