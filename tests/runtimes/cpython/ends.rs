//! CPython that ends, forks, and turns its trampolines on and off.

use std::process::{Command, Stdio};

use super::super::recording::registered_and_gone;
use super::{guest, python, with_library};
use crate::perf;
use crate::support::{describe, run, stdout, tool, try_run, TmpFiles};

/// Runs a program, and returns what it printed and its map and jitdump.
fn files_of(options: &[&str], variables: &[(&str, &str)], code: &str) -> (String, String, String) {
    let mut command = perf::command(python());
    with_library(&mut command).envs(variables.iter().copied()).args(options).args(["-c", code]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start CPython");
    let files = TmpFiles(child.id());
    let output = child.wait_with_output().expect("wait for CPython");
    let killed = code.contains("SIGKILL");
    assert!(output.status.success() || killed, "{}", describe(&command, &output));
    if killed {
        run(Command::new(tool()).arg("recover"));
    }
    let read = |path: String| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    let (map, dump) = (format!("/tmp/perf-{}.map", files.0), format!("/tmp/jit-{}.dump", files.0));
    assert!(output.stderr.is_empty(), "{}", describe(&command, &output));
    (stdout(&output), read(map), read(dump))
}

const BOTH: &[(&str, &str)] = &[("JITSYM", "map,jitdump")];

/// What ran just before an end without exit handlers is in the files; after a kill it is there when they have been recovered.
#[test]
fn cpython_ends() {
    for end in [
        "pass",
        "os._exit(0)",
        "os.execv('/bin/true', ['true'])",
        "os.execve('/bin/true', ['true'], {})",
        "os.kill(os.getpid(), signal.SIGKILL)",
    ] {
        let code = format!(
            "import os, signal\nfor i in range(100): exec(f'def last_{{i}}_(): pass\\nlast_{{i}}_()')\n{end}\n"
        );
        let (_, map, dump) = files_of(&["-X", "perf"], BOTH, &code);
        for i in 0..100 {
            let name = format!("py::last_{i}_:<string>");
            assert!(map.contains(&name) && dump.contains(&name), "{end}: {name} is missing");
        }
    }
}

/// The map has the names of a Python program and of the program that it executes.
#[test]
fn cpython_executes_another_program() {
    // A map from the first moments of a process is not continued: the program waits until it is older than four clock ticks.
    let code = "import os, sys, time
start = int(open('/proc/self/stat').read().rpartition(')')[2].split()[19])
while time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf('SC_CLK_TCK') < start + 5: pass
def before(): pass
before()
os.execv(sys.executable, [sys.executable, '-X', 'perf', '-c', 'def after(): pass\\nafter()'])";
    let (_, map, _) = files_of(&["-X", "perf"], &[], code);
    assert!(map.contains("py::before:<string>") && map.contains("py::after:<string>"), "{map}");
}

/// A trampoline is freed when its code object ends, but in a forked child only if the child has made its own trampolines: until
/// then it has no threads of the library.
#[test]
fn cpython_frees() {
    let code = "import ctypes, os
function = type(lambda: 0)
def call(name): pass
for i in range(5000): function(call.__code__.replace(co_name=f'call_{i}'), {})(i)
last = function(call.__code__.replace(), {})
last(0)
pid = os.fork()
if pid == 0:
    del last
    os.write(1, b'%d threads\\n' % len(os.listdir('/proc/self/task')))
    os._exit(0)
os.waitpid(pid, 0)
ctypes.CDLL(None).exit(0)";
    for (option, variables) in [("perf", &[("JITSYM_REMOVE", "1")]), ("perf", &[("JITSYM", "region")])] {
        let mut command = perf::command(python());
        with_library(&mut command).envs(variables.iter().copied()).env("JITSYM_DEBUG", "1");
        let child = command.args(["-X", option, "-c", code]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.expect("start CPython");
        let _files = TmpFiles(child.id());
        let output = child.wait_with_output().expect("wait for CPython");
        assert!(output.status.success() && stdout(&output) == "1 threads\n", "{}", describe(&command, &output));
        // The end of the interpreter, which would end all code objects, did not come.
        let (registered, gone) = registered_and_gone(&String::from_utf8_lossy(&output.stderr));
        assert!(registered > gone && gone >= 5000, "{}", describe(&command, &output));
    }
}

/// A function that gives its code object away while it runs keeps the trampoline until it has returned: at this moment gdb
/// shows its callers, and not the function.
#[test]
fn cpython_frees_after_the_return() {
    let guest = guest("replaced.py");
    let mut gdb = perf::command("gdb");
    with_library(&mut gdb).args(["-batch", "-nx", "-ex", "set debuginfod enabled off", "-ex", "break os_getppid"]);
    gdb.args(["-ex", "run", "-ex", "break jitsym_trampoline_free", "-ex", "continue", "-ex", "bt"]);
    gdb.arg("--args").arg(python()).args(["-X", "perf_jit", &guest]);
    let text = stdout(&run(&mut gdb));
    let functions = text.lines().filter_map(|line| line.split_once(" py::")).map(|(_, rest)| rest);
    let functions: Vec<&str> = functions.filter_map(|rest| rest.split(':').next()).collect();
    assert!(text.contains(" jitsym_trampoline_free ("), "{text}");
    assert_eq!(functions, ["outer", "<module>"], "{text}");
}

/// os.fork warns of other threads, but not of those of the library: in a child too, before it has any and after that.
#[test]
fn cpython_forks_without_a_warning() {
    let code = "import os, warnings, threading, time
def new(): pass
def fork():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        pid = os.fork()
    if pid != 0: os.waitpid(pid, 0)
    return pid, len(caught)
pid, warned = fork()
if pid == 0:
    pid, warned_child = fork()
    if pid == 0: os._exit(0)
    new()
    pid, again = fork()
    if pid == 0: os._exit(0)
    os.write(1, f'{warned_child} {again}\\n'.encode())
    os._exit(0)
event = threading.Event()
thread = threading.Thread(target=event.wait)
thread.start()
pid, warned_of_thread = fork()
if pid == 0: os._exit(0)
event.set(); thread.join()
os.write(1, f'{warned} {warned_of_thread}\\n'.encode())";
    for option in ["perf", "perf_jit"] {
        let (output, ..) = files_of(&["-X", option], &[("JITSYM_REMOVE", "1")], code);
        let lines: Vec<&str> = output.lines().collect();
        assert!(lines.contains(&"0 0") && lines.contains(&"0 1"), "{output}");
    }
}

/// Each way writes what was called while it was on, however often they take turns. Subinterpreters turn it on for themselves.
#[test]
fn cpython_switches() {
    let code = "import sys, _interpreters
def call(name):
    exec(f'def {name}(): pass\\n{name}()')
for i in range(20):
    sys.activate_stack_trampoline('perf'); call(f'map_{i}_')
    assert sys.is_stack_trampoline_active()
    sys.deactivate_stack_trampoline(); call(f'off_{i}_')
    assert not sys.is_stack_trampoline_active()
    sys.activate_stack_trampoline('perf_jit'); call(f'jit_{i}_')
    sys.activate_stack_trampoline('perf'); call(f'again_{i}_')
    sys.deactivate_stack_trampoline()
try: sys.activate_stack_trampoline('other'); assert False
except ValueError: pass
other = _interpreters.create('legacy')
_interpreters.exec(other, \"import sys\\nsys.activate_stack_trampoline('perf')\\ndef inside(): pass\\ninside()\")
_interpreters.destroy(other)
def after(): pass
sys.activate_stack_trampoline('perf'); after()";
    let (_, map, dump) = files_of(&[], &[], code);
    for i in 0..20 {
        let has = |text: &str, name: &str| text.contains(&format!("py::{name}_{i}_:<string>"));
        assert!(has(&map, "map") && has(&dump, "jit") && has(&map, "again"), "{i}: {map}");
        assert!(!has(&map, "off") && !has(&dump, "off"), "{i}: {map}");
    }
    assert!(map.contains("py::inside:") && map.contains("py::after:"), "{map}");
}

/// Processes that multiprocessing starts have their own files: those that it forks, and new ones.
#[test]
fn cpython_starts_processes() {
    for method in ["fork", "spawn", "forkserver"] {
        let code = format!(
            "import multiprocessing, os, subprocess
def main():
    queue = multiprocessing.get_context('{method}').Process(target=exec, args=('def work(): pass\\nwork()\\nimport os\\nprint(os.getpid(), flush=True)',))
    queue.start(); queue.join()
    assert queue.exitcode == 0
main()"
        );
        let (output, ..) = files_of(&[], &[("PYTHONPERFSUPPORT", "1")], &code);
        let pid = output.trim().parse().expect("process");
        let files = TmpFiles(pid);
        let map = std::fs::read_to_string(format!("/tmp/perf-{pid}.map")).expect("map of the process");
        drop(files);
        assert!(map.contains("py::work:<string>"), "{method}: {map}");
    }
}

/// Without the library, the headers write the map: CPython's own writer of maps is gone. CPython writes its own jitdump.
#[test]
fn cpython_without_the_library() {
    for (option, file) in [("perf", "/tmp/perf-PID.map"), ("perf_jit", "/tmp/jit-PID.dump")] {
        let mut command = perf::command(python());
        command.env("JITSYM_LIB", "/nowhere").args([
            "-X",
            option,
            "-c",
            "def own(): pass\nown()\nimport os\nprint(os.getpid())",
        ]);
        let output = try_run(&mut command);
        let pid = stdout(&output).trim().parse().unwrap_or_else(|_| panic!("{}", describe(&command, &output)));
        let _files = TmpFiles(pid);
        let bytes = std::fs::read(file.replace("PID", &pid.to_string())).expect("file of CPython");
        assert!(String::from_utf8_lossy(&bytes).contains("py::own:<string>"), "{option}");
    }
    let source = python().parent().expect("directory").join("Python/sysmodule.c");
    assert!(!std::fs::read_to_string(source).expect("source").contains("/tmp/perf-"));
}
