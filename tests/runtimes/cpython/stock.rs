//! CPython beside one that is not changed: the same source, compiled with the same options.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use jitsym_step::Graph;

use super::{guest, newer, python, samples, with_library, Way, JITDUMP, MAP, REGIONS};
use crate::cfi;
use crate::perf;
use crate::support::{describe, once, run, scratch_dir, stdout, TmpFiles};

/// A copy of the build without what `build.sh` has inserted. make sees only the files that have changed.
const UNDO: &str = r#"
[ ! -d "$2" ] || exit 0
rm -rf "$2.new"
cp -a "$1" "$2.new"
cd "$2.new"
rm Python/*jitsym*
find . -name '*.delivered' | while read -r file; do mv "$file" "${file%.delivered}"; done
touch Python/perf*.c Python/sysmodule.c Modules/posixmodule.c
sed -i '/jitsym_cpython\.o/d' Makefile
make -j"$(getconf _NPROCESSORS_ONLN)" >make.log 2>&1 || { cat make.log >&2; exit 1; }
! grep -q _PyJitsym_ python
mv "$2.new" "$2"
"#;

/// CPython as Debian has it, in the version of another one.
pub fn stock(python: &Path) -> PathBuf {
    let build = python.parent().expect("directory");
    let stock = build.with_file_name("stock");
    once(&stock, "", || drop(run(Command::new("sh").args(["-euc", UNDO, "sh"]).arg(build).arg(&stock))));
    stock.join("python")
}

/// Many kinds of functions. The modules are compiled, because what imports them calls other functions if that has been done before.
const NAMES: &str = "import dataclasses, json, enum, textwrap
class Straße(enum.Enum):
    A = 1
    @property
    def länge(self): return [len(x) for x in (lambda: 'abc')()]
@dataclasses.dataclass
class Data:
    a: int = 1
async def later(): return Straße.A.länge
def generator(): yield from (x for x in Straße)
try: later().send(None)
except StopIteration: pass
json.dumps([str(Data()), textwrap.dedent(' x')], cls=type('Encoder', (json.JSONEncoder,), {}))
for i in range(3): exec('def same(): pass\\nsame()')
list(generator())";

/// Size and name of each piece of code in the file that CPython leaves behind.
fn names(python: &Path, way: &Way, library: bool) -> Vec<String> {
    let mut command = perf::command(python);
    with_library(&mut command);
    if !library {
        command.env("JITSYM_LIB", "/nowhere");
    }
    command.envs([("PYTHONHASHSEED", "0"), ("PYTHONPYCACHEPREFIX", "/nowhere"), ("PYTHONDONTWRITEBYTECODE", "1")]);
    let child = command.args(["-X", way.option, "-c", NAMES]).stderr(Stdio::piped()).spawn().expect("start CPython");
    let files = TmpFiles(child.id());
    let output = child.wait_with_output().expect("wait for CPython");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", describe(&command, &output));
    let mut names: Vec<String> = if way.inject {
        let dump = std::fs::File::open(format!("/tmp/jit-{}.dump", files.0)).expect("jitdump");
        cfi::read_dump(dump).iter().map(|code| format!("{:x} {}", code.code.len(), code.name)).collect()
    } else {
        let map = std::fs::read_to_string(format!("/tmp/perf-{}.map", files.0)).expect("map");
        map.lines().map(|line| line.split_once(' ').expect("address").1.into()).collect()
    };
    let dir = python.parent().expect("directory").display().to_string();
    names.iter_mut().for_each(|name| *name = name.replace(&dir, "."));
    names.sort_unstable();
    names
}

/// Without the library, map and jitdump have the same pieces of code. With the library, they have the same names.
fn check_names(python: &Path) {
    let stock = stock(python);
    let expected = names(&stock, &MAP, true);
    for wanted in ["py::Straße.länge:<string>", "py::later:<string>", "py::generator.<locals>.<genexpr>:<string>"] {
        assert!(expected.iter().any(|name| name.ends_with(wanted)), "no {wanted} in {expected:?}");
    }
    for way in [&MAP, &JITDUMP] {
        assert_eq!(names(&stock, way, true), expected, "{}, a stock one", way.name);
        assert_eq!(names(python, way, false), expected, "{}, without the library", way.name);
        let without_size = |names: &[String]| -> Vec<String> {
            names.iter().map(|name| name.split_once(' ').expect("size").1.to_owned()).collect()
        };
        assert_eq!(without_size(&names(python, way, true)), without_size(&expected), "{}", way.name);
    }
}

#[test]
fn cpython_has_the_names_of_a_stock_one() {
    check_names(python());
}

#[test]
fn newer_cpython_has_the_names_of_a_stock_one() {
    check_names(newer());
}

/// Of stacks: whether a trampoline itself runs, and the Python functions.
type Whole = BTreeSet<(bool, Vec<String>)>;

/// The whole stacks that perf shows of each instruction of CPython, on each path of calls, while `called.py` runs in
/// `sys.call_tracing`. And stacks that end where they should not.
fn stacks(python: &Path, what: &str, way: &Way) -> (Whole, Vec<Vec<String>>) {
    let graph = if way.stacks == MAP.stacks { Graph::FramePointers } else { Graph::Stack(8192) };
    let mut data = scratch_dir(format!("{what}-{}", way.name)).join("perf.data");
    let mut program = perf::command(python);
    with_library(&mut program).envs(way.variables.iter().copied()).args(["-X", way.option, &guest("called.py")]);
    let (perf, enter) = (perf::perf("record"), &["sys_call_tracing"]);
    let recorded =
        jitsym_step::record(jitsym_step::Plan { program, perf, graph, enter, every: false, hold: None, data: &data });
    let recorded = recorded.unwrap_or_else(|error| panic!("{what}, {}: {error:#}", way.name));
    let _files = TmpFiles(recorded.moments[0].pid);
    if way.inject {
        let injected = data.with_extension("injected");
        run(perf::perf("inject").arg("--jit").arg("-i").arg(&data).arg("-o").arg(&injected));
        data = injected;
    }
    let script = run(perf::perf("script").args(["--no-inline", "-F", "comm,pid,time,ip,sym", "-i"]).arg(&data));
    let samples = samples(&stdout(&script));
    assert_eq!(samples.len(), recorded.moments.len());
    let callers = ["inner", "Middle.__call__", "outer", "<module>"];
    let (mut whole, mut broken) = (Whole::new(), Vec::new());
    for sample in samples {
        let functions = sample.functions();
        if sample.is_whole() && !functions.is_empty() && callers.ends_with(&functions) {
            let is_trampoline = sample.symbols[0].starts_with("py::");
            whole.insert((is_trampoline, functions.into_iter().map(String::from).collect()));
        } else if !sample.is_cut() {
            broken.push(sample.symbols);
        }
    }
    println!("{what}, {}: {} samples, {} of them broken: {whole:?}", way.name, recorded.moments.len(), broken.len());
    (whole, broken)
}

/// No stack is missing that perf shows of a stock one.
fn check_stacks(python: &Path) {
    let stock = stock(python);
    for (way, alike) in [(&MAP, &MAP), (&JITDUMP, &JITDUMP), (&REGIONS, &JITDUMP)] {
        let (whole, broken) = stacks(python, "port", way);
        assert!(broken.is_empty(), "{}: {broken:?}", way.name);
        // In a trampoline of each of the three functions, and elsewhere, there also in none of them.
        assert_eq!(whole.len(), 3 + 4, "{}: {whole:?}", way.name);
        assert!(whole.is_superset(&stacks(&stock, "stock", alike).0), "{}: {whole:?}", way.name);
    }
}

#[test]
fn cpython_has_the_stacks_of_a_stock_one() {
    check_stacks(python());
}

#[test]
fn newer_cpython_has_the_stacks_of_a_stock_one() {
    check_stacks(newer());
}
