//! `jitsym record` starts a runtime once before it sets something for it. This start leaves nothing, and starts nothing of the user.

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::{
    fetched, fresh_dir, run, run_to_its_end, scratch_dir, serial, stdout, until_enough, wait_until, TmpFiles,
};
use crate::{jitsym, said};

const SHELL: &str = "/bin/sh";

/// Writes a script that can be executed.
fn program(path: &Path, interpreter: &str, text: &str) {
    fs::write(path, format!("#!{interpreter}\n{text}\n")).expect("script");
    fs::set_permissions(path, Permissions::from_mode(0o755)).expect("executable");
}

/// Records a command in a directory.
fn record(dir: &Path, command: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut record = jitsym(&["record", "-e", "cpu-clock", "-g", "none", "-o", "perf.data", "--"]);
    let names = ["NODE_OPTIONS", "PYTHONPERFSUPPORT", "PYTHON_PERF_JIT_SUPPORT", "JAVA_TOOL_OPTIONS", "ERL_FLAGS"];
    for name in names {
        record.env_remove(name);
    }
    record.args(command).envs(variables.iter().copied()).current_dir(dir);
    let output = run_to_its_end(&mut record);
    assert!(output.status.success(), "{output:?}");
    output
}

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).expect("file").lines().map(str::to_owned).collect()
}

/// Waits until a process has ended. A process that nobody waits for has ended too.
fn wait_for_end(pid: &str) {
    let lives = || fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|state| !state.contains(") Z"));
    wait_until(&format!("the end of process {pid}"), || !lives());
}

/// The runtime is started in another directory, so its path must not depend on the directory.
#[test]
fn by_a_relative_path() {
    let _alone = serial();
    let dir = fresh_dir("relative");
    let node = stdout(&run(Command::new("sh").args(["-c", "command -v node"])));
    symlink(node.trim(), dir.join("node")).expect("link");
    fs::write(dir.join("x.js"), "console.log(process.env.NODE_OPTIONS)").expect("script");
    let path = format!(".:{}", std::env::var("PATH").expect("PATH"));
    program(&dir.join("by_line"), "./node", "console.log(process.env.NODE_OPTIONS)");
    for command in [&["./node", "x.js"][..], &["node", "x.js"], &["./by_line"]] {
        let output = record(&dir, command, &[("PATH", &path)]);
        assert_eq!(stdout(&output), "--perf-prof --interpreted-frames-native-stack\n", "{command:?}: {output:?}");
        assert!(said(&output).contains("set for Node.js"), "{command:?}: {output:?}");
    }
}

/// What the started runtime has started ends with it, and of the files in /tmp only its own are removed.
#[test]
fn nothing_is_left_of_it() {
    let _alone = serial();
    let dir = fresh_dir("left");
    let pids = dir.join("pids");
    let files = "for pid in $$ $!; do : >/tmp/perf-$pid.map; : >/tmp/jit-$pid.dump; done";
    let text = format!("sleep 1000 & {files}; echo $$ $! >'{}'", pids.display());
    program(&dir.join("node"), SHELL, &format!("[ \"$1\" != --version ] || {{ {text}; }}"));
    let output = record(&dir, &["./node"], &[]);
    assert!(said(&output).contains("set for Node.js"), "{output:?}");
    let line = lines(&pids).remove(0);
    let (own, other) = line.split_once(' ').expect("two pids");
    let _files = [own, other].map(|pid| TmpFiles(pid.parse().expect("a pid")));
    wait_for_end(other);
    let is_there = |pid: &str| {
        [format!("/tmp/perf-{pid}.map"), format!("/tmp/jit-{pid}.dump")].map(|path| Path::new(&path).exists())
    };
    assert_eq!((is_there(own), is_there(other)), ([false; 2], [true; 2]));
}

/// A signal ends the start of the runtime, and nothing is recorded.
#[test]
fn a_signal_ends_it() {
    let _alone = serial();
    let dir = fresh_dir("probe-signal");
    let (ready, ran) = (dir.join("ready"), dir.join("ran"));
    // The runtime is started in another directory, which may be in another file system. There, `mv` is not one step.
    let text = format!("echo $$ >'{0}.new'; mv '{0}.new' '{0}'; sleep 1000; exit 0", ready.display());
    program(&dir.join("node"), SHELL, &format!("[ \"$1\" = --version ] || exec touch '{}'\n{text}", ran.display()));
    let mut record = jitsym(&["record", "-e", "cpu-clock", "-o", "perf.data", "--", "./node"]);
    let mut child = record.current_dir(&dir).stderr(Stdio::piped()).spawn().expect("start");
    wait_until("the runtime", || ready.exists());
    // SAFETY: the process is a child that was not waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    let mut text = String::new();
    child.stderr.take().expect("output").read_to_string(&mut text).expect("text");
    assert_eq!(child.wait().expect("end").code(), Some(128 + 2), "{text}");
    assert!(text.contains("stopped before anything was recorded") && text.lines().count() == 1, "{text}");
    assert!(!ran.exists() && !dir.join("perf.data").exists());
    wait_for_end(&lines(&ready)[0]);
}

/// Modules that the user has Node.js load are loaded by the command only.
#[test]
fn node_with_a_module_of_the_user() {
    let _alone = serial();
    let dir = fresh_dir("module");
    let log = dir.join("log");
    let module = dir.join("module.js");
    fs::write(&module, "require('fs').appendFileSync(process.env.LOG, process.pid + '\\n')").expect("module");
    fs::write(dir.join("x.js"), "console.log(process.pid)").expect("script");
    let variables = [("NODE_OPTIONS", format!("--require {}", module.display())), ("LOG", log.display().to_string())];
    let output = record(&dir, &["node", "x.js"], &variables.each_ref().map(|(name, value)| (*name, &**value)));
    assert!(said(&output).contains("module.js --perf-prof --interpreted-frames-native-stack"), "{output:?}");
    assert_eq!(lines(&log).concat(), stdout(&output).trim());
}

/// Python's start-up code of the user runs in the command only. The jitdump of the start is removed, that of the command stays.
#[test]
fn python_with_code_of_the_user() {
    let _alone = serial();
    let dir = fresh_dir("startup");
    let (log, pids) = (dir.join("log"), dir.join("pids"));
    fs::write(dir.join("sitecustomize.py"), "import os\nopen(os.environ['LOG'], 'a').write(f'{os.getpid()}\\n')")
        .expect("module");
    program(
        &dir.join("python3.13"),
        SHELL,
        &format!("echo $$ >>'{}'\nexec '{}' \"$@\"", pids.display(), fetched("python3.13").display()),
    );
    let variables = [("PYTHONPATH", dir.display().to_string()), ("LOG", log.display().to_string())];
    let variables = variables.each_ref().map(|(name, value)| (*name, &**value));
    let output = record(&dir, &["./python3.13", "-c", "sum(range(100))"], &variables);
    assert!(said(&output).contains("PYTHON_PERF_JIT_SUPPORT=1"), "{output:?}");
    let pids = lines(&pids);
    let _files: Vec<TmpFiles> = pids.iter().map(|pid| TmpFiles(pid.parse().expect("a pid"))).collect();
    let [asked, ran] = &pids[..] else { panic!("{pids:?}") };
    assert_eq!(lines(&log), [&**ran]);
    let dump = |pid: &str| Path::new(&format!("/tmp/jit-{pid}.dump")).exists();
    assert_eq!((dump(asked), dump(ran)), (false, true), "{output:?}");
}

/// Variables with agents, debuggers and logs of the user reach the command, and not the first start. What the start gets is all
/// that would be set, with flags that it must not ignore.
#[test]
fn options_of_the_user() {
    let _alone = serial();
    let dir = fresh_dir("options");
    let log = dir.join("log");
    let java = ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"];
    let shows = |names: &[&str]| {
        let values: String = names.iter().map(|name| format!(";{name}=${{{name}-unset}}")).collect();
        format!("echo \"$*{values}\" >>'{}'", log.display())
    };
    program(&dir.join("java"), SHELL, &shows(&java));
    program(&dir.join("erl"), SHELL, &shows(&["ERL_FLAGS", "ERL_ZFLAGS"]));
    let debugger = "-agentlib:jdwp=transport=dt_socket,server=y,suspend=y";
    record(&dir, &["./java", "X"], &[(java[0], debugger), (java[1], "-Xlog:gc:file=gc.log"), (java[2], "-Xint")]);
    let [asked, ran] = &lines(&log)[..] else { panic!("{:?}", lines(&log)) };
    let set = "-XX:+PreserveFramePointer";
    assert!(asked.starts_with("-version;JAVA_TOOL_OPTIONS=-XX:+IgnoreUnrecognizedVMOptions"), "{asked}");
    assert!(asked.ends_with(&format!("{set};JDK_JAVA_OPTIONS=unset;_JAVA_OPTIONS=unset")), "{asked}");
    assert!(ran.starts_with(&format!("X;JAVA_TOOL_OPTIONS={debugger} -XX:")), "{ran}");
    assert!(ran.ends_with(&format!("{set};JDK_JAVA_OPTIONS=-Xlog:gc:file=gc.log;_JAVA_OPTIONS=-Xint")), "{ran}");
    fs::remove_file(&log).expect("log");
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").expect("PATH"));
    record(&dir, &["erl", "x"], &[("PATH", &path), ("ERL_FLAGS", "-sname me"), ("ERL_ZFLAGS", "-s agent")]);
    let expected = [
        ";ERL_FLAGS=-sname me +JPperf true;ERL_ZFLAGS=+V -start_epmd false",
        "x;ERL_FLAGS=-sname me +JPperf true;ERL_ZFLAGS=-s agent",
    ];
    assert_eq!(lines(&log), expected);
}

/// Ends a process.
struct Ends(i32);

impl Drop for Ends {
    fn drop(&mut self) {
        // SAFETY: a system call.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
    }
}

/// Files of runtimes stay: of the command, of a process that goes on after the recording, and those that were there before.
#[test]
fn files_of_a_runtime_stay() {
    let _alone = serial();
    let dir = scratch_dir("stay");
    let script = "const burn = seconds => { const end = Date.now() + 1000 * seconds; while (Date.now() < end); };
if (process.argv[2] == 'child') burn(600);
const options = { detached: true, stdio: 'ignore' };
const child = require('child_process').spawn(process.execPath, [process.argv[1], 'child'], options);
child.unref();
const dump = `jit-${child.pid}.dump`;
while (!require('fs').existsSync(dump)) burn(0.01);
burn(process.argv[2]);
console.log(`${child.pid} ${process.pid}`);
";
    let (ends, text) = until_enough(1, |pace| {
        let dir = fresh_dir("stay");
        fs::write(dir.join("x.js"), script).expect("script");
        let output = record(&dir, &["node", "x.js", &pace.to_string()], &[]);
        let text = stdout(&output);
        let ends = Ends(text.split(' ').next().and_then(|child| child.parse().ok()).expect("a pid"));
        assert!(said(&output).contains("set for Node.js"), "{output:?}");
        ((ends, text), usize::from(said(&output).contains("put in")))
    });
    let (child, own) = text.trim().split_once(' ').expect("two pids");
    let maps = fs::read_to_string(format!("/proc/{child}/maps")).expect("the process lives");
    let dump = dir.join(format!("jit-{child}.dump"));
    assert!(maps.lines().any(|line| line.ends_with(&*dump.to_string_lossy())), "{maps}");
    drop(ends);
    let (logs, mut others): (Vec<PathBuf>, Vec<PathBuf>) = fs::read_dir(&dir)
        .expect("directory")
        .map(|entry| entry.expect("entry").path())
        .partition(|path| path.extension().is_some_and(|end| end == "log"));
    let has =
        |logs: &[PathBuf], pid: &str| logs.iter().any(|log| log.to_string_lossy().ends_with(&format!("-{pid}-v8.log")));
    assert!(logs.len() == 2 && has(&logs, own) && has(&logs, child), "{logs:?}");
    others.sort();
    let mut expected = [format!("jit-{child}.dump"), format!("jit-{own}.dump")];
    expected.sort();
    let expected = expected.iter().map(String::as_str).chain(["perf.data", "perf.data.objects", "x.js"]);
    assert_eq!(others, expected.map(|name| dir.join(name)).collect::<Vec<_>>());
}
