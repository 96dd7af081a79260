//! `jitsym bundle` and `jitsym report`: the real perf shows the same of a bundle as of the recording, without the files of the
//! recorded program, and no secret is in a bundle.

#[path = "bundle/hostile.rs"]
mod hostile;
#[allow(dead_code)]
#[path = "inject/parts.rs"]
mod parts;
#[path = "../../tests/support/perf.rs"]
mod perf;
#[path = "bundle/places.rs"]
mod places;
#[path = "bundle/secrets.rs"]
mod secrets;
#[path = "../../tests/support/mod.rs"]
mod support;
#[allow(dead_code)]
mod toy;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::*;

fn jitsym(words: &[&str]) -> Command {
    let mut command = perf::command(env!("CARGO_BIN_EXE_jitsym"));
    command.args(words);
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Makes a bundle, and returns it with what was printed.
fn bundled(data: &Path, options: &[&str]) -> (PathBuf, String) {
    let bundle = data.with_extension("tar.gz");
    let output = run(jitsym(&["bundle"]).arg(data).arg("-o").arg(&bundle).args(options));
    assert!(said(&output).is_empty(), "{}", said(&output));
    (bundle, stdout(&output))
}

/// Unpacks a bundle by tar.
fn unpacked(bundle: &Path) -> PathBuf {
    // Two tests must not use one directory.
    let name = bundle.parent().and_then(Path::file_name).expect("directory");
    let dir = fresh_dir(format!("unpacked-{}", name.to_string_lossy()));
    run(Command::new("tar").arg("xf").arg(bundle).arg("-C").arg(&dir));
    dir.join("jitsym-bundle")
}

/// Arguments for a perf that reads an unpacked bundle.
fn of_bundle(dir: &Path) -> Vec<PathBuf> {
    [
        "--symfs".into(),
        dir.join("symbols"),
        "--kallsyms".into(),
        dir.join("kallsyms"),
        "-i".into(),
        dir.join("perf.data"),
    ]
    .into()
}

/// The same for a recording.
fn of_recording(data: &Path) -> Vec<PathBuf> {
    vec!["-i".into(), data.to_owned()]
}

const NAMES: &str = "comm,pid,tid,time,event,ip,sym,symoff,dso";

fn script(mut command: Command, arguments: &[PathBuf], fields: &str) -> String {
    stdout(&run(command.args(["--ns", "--no-inline", "-F", fields]).args(arguments)))
}

/// What perf shows of all samples, without what differs by intention: the vDSO has another path, and where libunwind has lost
/// a stack, the address is the highest one that a call chain can have.
fn same(text: &str) -> String {
    text.replace("([vdso])", "(/vdso)").replace("\tffffffffffffffff ", "\tfffffffffffff000 ")
}

#[track_caller]
fn assert_same(before: &str, after: &str) {
    let (before, after) = (same(before), same(after));
    let differ = before.lines().zip(after.lines()).find(|(before, after)| before != after);
    assert!(before == after, "first difference: {differ:?}; {} and {} bytes", before.len(), after.len());
    assert!(before.lines().count() > 100, "{before}");
}

/// A recording of a program that was copied, so that it can be removed. The code is in the new recording.
fn of_a_copy(name: &str) -> (perf::Recording, PathBuf, PathBuf) {
    let program = fresh_dir(format!("{name}-program")).join("copied");
    fs::copy(perf::program(), &program).expect("copy");
    let recording = perf::Recording::with_stacks(name, &program, &["scenario=stacks", "sinks=jitdump", "seconds=1"]);
    let new = recording.data.with_file_name("jit.data");
    run(jitsym(&["inject", "-i"]).arg(&recording.data).arg("-o").arg(&new));
    (recording, new, program)
}

/// Names and whole stacks are those of the recording and those of the truth, when nothing of the recorded program is there any
/// more.
#[test]
fn the_same_elsewhere() {
    let (recording, data, program) = of_a_copy("elsewhere");
    let before = script(perf::perf("script"), &of_recording(&data), NAMES);
    let mut samples = perf::samples(&recording.truth, &data, false);
    let (bundle, printed) = bundled(&data, &[]);
    assert!(printed.contains(" samples, 1 object of compiled code, symbols of "), "{printed}");
    fs::remove_file(program).expect("program");
    fs::remove_file(&data).expect("recording");
    fs::remove_file(&recording.data).expect("recording");
    fs::remove_dir_all(data.with_file_name("jit.data.objects")).expect("objects");
    drop(TmpFiles(recording.truth.pid));

    let dir = unpacked(&bundle);
    assert_same(&before, &script(perf::perf("script"), &of_bundle(&dir), NAMES));
    let text = script(perf::perf("script"), &of_bundle(&dir), perf::STACK_FIELDS);
    assert_eq!(perf::add_stacks(&recording.truth, &mut samples, &text), samples.len());
    let found = perf::guest_samples(&recording.truth, &samples);
    perf::check_names(&found, 500);
    perf::check_stacks(&recording.truth, &found);
    // The control: the names are those of the bundle.
    fs::remove_dir_all(dir.join("symbols")).expect("symbols");
    fs::create_dir(dir.join("symbols")).expect("symbols");
    let text = script(perf::perf("script"), &of_bundle(&dir), NAMES);
    assert!(!text.contains(" main+0x") && !text.contains(" leaf_"), "{text}");
}

/// The same with the perf of each newer suite. perf 6.1 has found other stacks in some places, so each makes its own bundle.
#[test]
fn newer_perfs() {
    let (_recording, data, _) = of_a_copy("bundle-newer");
    for name in ["trixie/perf", "perf"] {
        let newer = fetched(name);
        let (bundle, _) = bundled(&data, &["--perf", newer.to_str().expect("path")]);
        let script = |arguments: &[PathBuf]| script(perf::of(perf::command(&newer), &[], "script"), arguments, NAMES);
        assert_same(&script(&of_recording(&data)), &script(&of_bundle(&unpacked(&bundle))));
    }
}

/// A recording of `jitsym record`, and the commands of jitsym that read a bundle: they show the same as of the recording, also
/// the source line of a function.
#[test]
fn by_the_commands_of_jitsym() {
    let _alone = serial();
    let dir = fresh_dir("commands");
    let (data, bundle, source) = (dir.join("perf.data"), dir.join("b.tar.gz"), dir.join("hello.toy"));
    fs::copy(root().join("examples/hello.toy"), &source).expect("copy");
    let (pid, output) = until_enough(30, |pace| {
        let mut command = jitsym(&["record", "-F", "999", "-e", "cpu-clock", "-o"]);
        command.arg(&data).arg("--bundle").arg(&bundle).args(["--", "sh", "-c", "echo $$; exec \"$@\"", "sh"]);
        command.arg(toy::toy()).arg(&source).arg(pace.to_string());
        let output = perf::whole(&data, || run(&mut command));
        let pid = stdout(&output).lines().next().and_then(|line| line.parse().ok()).expect("a pid");
        let text = stdout(&run(perf::perf("script").args(["-G", "-F", "ip,sym", "-i"]).arg(&data)));
        ((TmpFiles(pid), output), text.matches("pixel").count())
    });
    assert!(said(&output).contains(&format!("source file: {}", source.display())), "{}", said(&output));
    let temporary = fresh_dir("commands-temporary");
    let shown = |command: &str, file: &Path, options: &[&str]| {
        let mut command = jitsym(&[command]);
        stdout(&run(command.current_dir(&dir).arg(file).args(options).env("TMPDIR", &temporary)))
    };
    // Inlined functions of libraries need their debug information.
    let report = ["--", "--stdio", "--no-inline", "-g", "caller", "--sort", "comm,sym"];
    let before = [shown("report", &data, &report), shown("top", &data, &[])];
    let picture = |file: &Path| {
        shown("flamegraph", file, &["-o", "picture.svg"]);
        let text = fs::read_to_string(dir.join("picture.svg")).expect("picture");
        // The title.
        text.replace(&file.display().to_string(), "FILE")
    };
    let drawn = picture(&data);
    fs::remove_file(&data).expect("recording");
    fs::remove_file(&source).expect("source");
    fs::remove_dir_all(dir.join("perf.data.objects")).expect("objects");
    drop(pid);
    assert!(before[0].contains("pixel") && before[1].contains("pixel  [JIT]"), "{before:?}");
    let after = [shown("report", &bundle, &report), shown("top", &bundle, &[])];
    // perf prints another tip each time.
    let lines = |text: &str| text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(lines(&before[0]), lines(&after[0]));
    assert_eq!(before[1], after[1]);
    assert!(drawn.contains(">pixel (") && drawn == picture(&bundle), "the pictures differ");
    assert_eq!(fs::read_dir(&temporary).expect("directory").count(), 0, "nothing is left of an unpacked bundle");

    let unpacked = unpacked(&bundle);
    let sources = unpacked.join("sources");
    let mut annotate = perf::perf("annotate");
    annotate.current_dir(&sources).arg("--prefix").arg(&sources).args(["--stdio", "-s", "pixel", "-i"]);
    annotate.arg(unpacked.join("perf.data")).arg("--symfs").arg(unpacked.join("symbols"));
    let text = stdout(&run(&mut annotate));
    assert!(text.contains("spin 9000"), "{text}");
    // The control: without the source there is no such line.
    fs::remove_dir_all(&sources).expect("sources");
    fs::create_dir(&sources).expect("sources");
    assert!(!stdout(&run(&mut annotate)).contains("spin 9000"));
}

/// Line tables may spell the path of a file in several ways. The file is in the bundle once, and the bundle can be read.
#[test]
fn a_source_with_two_names() {
    let dir = fresh_dir("two-names");
    let (raw, data, source) = (dir.join("perf.data"), dir.join("jit.data"), dir.join("source.txt"));
    fs::write(&source, "one line\n").expect("source");
    let names = [source.display().to_string(), format!("{}/.//source.txt", dir.display())];
    let program = compile("gcc", &["tool/tests/inject/shapes.c"], Link::None, &["-std=gnu99"], "shapes");
    {
        let _alone = serial();
        let mut record = perf::perf("record");
        record.args(["-q", "-k", "1", "-e", "cpu-clock", "-F", "999", "-o"]).arg(&raw).arg("--").arg(program);
        run(record.arg(&dir).arg("sources").args(&names));
    }
    run(jitsym(&["inject", "-i"]).arg(&raw).arg("-o").arg(&data));
    // The control: the objects have both names.
    let objects = fs::read_dir(dir.join("jit.data.objects")).expect("objects");
    let objects: Vec<u8> = objects.flat_map(|entry| fs::read(entry.expect("entry").path()).expect("object")).collect();
    let has =
        |name: &String| objects.windows(name.len() + 1).any(|part| part.strip_suffix(b"\0") == Some(name.as_bytes()));
    assert!(names.iter().all(has), "{names:?}");
    let (bundle, printed) = bundled(&data, &[]);
    assert_eq!(printed.matches("source file: ").count(), 1, "{printed}");
    let place = unpacked(&bundle).join("sources").join(source.strip_prefix("/").expect("path"));
    assert_eq!(fs::read_to_string(place).expect("source"), "one line\n");
    assert!(stdout(&run(jitsym(&["top"]).arg(&bundle))).contains("with_source  [JIT]"));
}

/// Names of a perf map, by frame pointers: a bundle has them when the map is gone. No sample is in the kernel, and perf takes the
/// same arguments for such a bundle.
#[test]
fn names_of_a_perf_map() {
    let _alone = serial();
    let data = fresh_dir("perf-map").join("perf.data");
    let files = until_enough(30, |pace| {
        let mut record = perf::perf("record");
        record.args(["-k", "1", "-e", "cpu-clock:u", "-F", "999", "-g", "-o"]).arg(&data);
        record.args(["--", "sh", "-c", "echo $$; exec \"$@\"", "sh"]).arg(toy::toy());
        record.arg(root().join("examples/hello.toy")).arg(pace.to_string()).env("JITSYM", "map");
        let output = perf::whole(&data, || run(&mut record));
        let pid = stdout(&output).lines().next().and_then(|line| line.parse().ok()).expect("a pid");
        let text = stdout(&run(perf::perf("script").args(["-G", "-F", "ip,sym", "-i"]).arg(&data)));
        (TmpFiles(pid), text.matches("pixel").count())
    });
    // The file of the map is the only difference.
    let fields = "comm,pid,tid,time,event,ip,sym,symoff";
    let before = script(perf::perf("script"), &of_recording(&data), fields);
    let (bundle, _) = bundled(&data, &[]);
    drop(files);
    let dir = unpacked(&bundle);
    assert_eq!(fs::read_to_string(dir.join("kallsyms")).expect("a list"), "");
    assert_same(&before, &script(perf::perf("script"), &of_bundle(&dir), fields));
    assert!(before.contains(" pixel+0x"), "{before}");
    assert!(!script(perf::perf("script"), &of_recording(&data), fields).contains(" pixel+0x"), "the map is gone");
    let top = stdout(&run(jitsym(&["top"]).arg(&bundle)));
    assert!(top.contains("pixel  [JIT]"), "{top}");
}
