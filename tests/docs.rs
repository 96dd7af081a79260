//! What README.md and docs/*.md say in code and numbers is true.
//!
//! Every block of code in them is compiled and run, or says why not. What is done with it depends on its language, and on a
//! comment in front of it:
//!
//! | block | what is done |
//! |---|---|
//! | `c` after `<!-- test: registers NAME... -->` | compiled, run, and the names are looked for; in the `sh` blocks of its document it is `vm` |
//! | `c` behind `<!-- test: NAME -->` | a part of the program `tests/docs/NAME.c`, which includes all such parts of the document |
//! | `c` after `<!-- test: crashes, expect TEXT -->` | compiled and run. SIGSEGV has to end it, and standard error has to contain the text |
//! | `sh` | run in the sandbox of its document, in the order of the text |
//! | `sh` behind `<!-- test: expect TEXT -->` | the same, and its output has to contain the text |
//! | `sh` behind `<!-- test: container, expect TEXT -->` | the same, `$pid` being that of a process in a container |
//! | any behind `<!-- test: not run, REASON -->` | nothing; if it is `c`, it is compiled as the body of a function |
//!
//! C is compiled by gcc and clang, as ISO C and as they do by themselves, with nothing defined: also the code in the headers' comments
//! and in the manual pages.

mod blocks;
mod sandbox;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::pages;
use crate::perf;
use crate::support::*;
use blocks::*;
use object::{Object, ObjectSymbol};
use sandbox::{Container, Sandbox};

#[test]
fn every_block_is_tested_or_says_why_not() {
    let blocks = blocks();
    let uses: Vec<Use<'_>> = blocks.iter().map(Block::used).collect();
    let used: BTreeSet<&str> =
        uses.iter().filter_map(|used| if let Use::Fragment(name) = used { Some(*name) } else { None }).collect();
    for entry in std::fs::read_dir(root().join("tests/docs")).expect("harnesses") {
        let path = entry.expect("entry").path();
        if path.extension().is_none_or(|extension| extension != "c") {
            continue;
        }
        let name = path.file_stem().and_then(|stem| stem.to_str()).expect("UTF-8");
        assert!(used.contains(name), "no block is a part of {}", path.display());
    }
    assert!(uses.iter().any(|used| matches!(used, Use::Program(_))));
}

/// All headers in C.
const HEADERS: [&str; 4] =
    ["include/jitsym.h", "include/jitsym_region.h", "include/jitsym_control.h", "include/jitsym_dl.h"];

/// What the strictest of readers compile with, and what most do.
const STANDARDS: [&[&str]; 3] = [&["-std=c99"], &["-std=c11"], &[]];

/// Every way in which a reader may compile C, the last of which is gcc's own.
fn compilers() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    ["clang", "gcc"].into_iter().flat_map(|compiler| {
        STANDARDS.map(|standard| (compiler, [standard, &["-pedantic", "-O2", "-Wall", "-Wextra", "-Werror"]].concat()))
    })
}

fn compile_strictly(source: &Path, link: Link, flags: &[&str], name: &str) -> PathBuf {
    let source = source.to_str().expect("UTF-8");
    let made =
        compilers().map(|(compiler, strict)| compile(compiler, &[source], link, &[&strict, flags].concat(), name));
    made.last().expect("a compiler")
}

/// The same for code that is a part of something, or of nothing.
fn compile_part(place: &str, text: &str) {
    let source = scratch_dir("parts").join(format!("{}.c", place.replace(['/', ':'], "-")));
    std::fs::write(&source, text).expect("write the part");
    for (compiler, strict) in compilers() {
        let mut command = Command::new(compiler);
        run(command.current_dir(root()).args(strict).args(["-Iinclude", "-o", "/dev/null", "-c"]).arg(&source));
    }
}

/// A part that is statements, about what its text says that there is.
fn compile_statements(place: &str, text: &str) {
    let function = "void part(jitsym *given, const void *entry, uint64_t length)";
    // A part that opens no session goes on with one.
    let given = if text.contains("jitsym *session;") { "" } else { "jitsym *session = given;\n" };
    let unused = "(void)given, (void)entry, (void)length;\n";
    let used = if given.is_empty() { "" } else { "(void)session;\n" };
    compile_part(place, &format!("#include <jitsym_control.h>\n#include <jitsym_region.h>\n{function};\n{function} {{\n{unused}{given}{used}{text}}}\n"));
}

/// Compiles a program in a directory of its own. What compilers say of it does not depend on the library.
fn compile_program(block: &Block, link: Link) -> PathBuf {
    let name = block.place().replace(['/', ':'], "-");
    let source = scratch_dir(&name).join("program.c");
    std::fs::write(&source, lines_of(block)).expect("write the program");
    let out = format!("{name}-{link:?}");
    if link == Link::Shared {
        return compile_strictly(&source, link, &[], &out);
    }
    compile("gcc", &[source.to_str().expect("UTF-8")], link, &["-O2"], &out)
}

/// Each program is made with both libraries, and leaves a map in which its functions are, and nothing else.
#[test]
fn programs_compile_and_run() {
    for block in &blocks() {
        let Use::Program(names) = block.used() else { continue };
        for link in [Link::Shared, Link::Static] {
            let program = compile_program(block, link);
            let dir = fresh_dir("program-files");
            let mut command = perf::command(program);
            command.env("JITSYM_DIR", &dir);
            let child = command.spawn().expect("start");
            let pid = child.id();
            assert!(child.wait_with_output().expect("wait").status.success(), "{}, {link:?}", block.place());
            checker::assert_all_described(&dir);
            let map = std::fs::read_to_string(dir.join(format!("perf-{pid}.map"))).expect("map");
            let found: Vec<&str> = map.lines().filter_map(|line| line.rsplit(' ').next()).collect();
            assert_eq!(found, names, "{}", block.place());
        }
    }
}

/// What the text says is on standard error before the signal ends the program.
#[cfg(target_arch = "x86_64")]
#[test]
fn crashing_programs_print_their_stacks() {
    use std::os::unix::process::ExitStatusExt;

    let blocks = blocks();
    let crashes =
        blocks.iter().filter_map(|block| if let Use::Crash(text) = block.used() { Some((block, text)) } else { None });
    let mut count = 0;
    for (block, text) in crashes {
        for link in [Link::Shared, Link::Static] {
            let output = try_run(&mut perf::command(compile_program(block, link)));
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{}", block.place());
            assert!(said.contains(text) && said.contains(" main+0x"), "{}: {said}", block.place());
            count += 1;
        }
    }
    assert!(count > 0);
}

/// The first program registers its code before that may be executed. Where the user sets nothing but `JITSYM_ADOPT`, its memory
/// becomes a region all the same, and the region's file names the code.
#[test]
fn the_first_integration_is_adopted() {
    let blocks = blocks();
    let is_first =
        |block: &&Block| block.document.ends_with("integration.md") && matches!(block.used(), Use::Program(_));
    let program = compile_program(blocks.iter().find(is_first).expect("a program"), Link::Shared);
    let dir = fresh_dir("adopted-program-files");
    assert_adopted(perf::command(program).env("JITSYM_DIR", &dir), &dir, &["answer"]);
}

/// The small compiler writes all its code before the memory is executable.
#[test]
fn the_small_compiler_is_adopted() {
    let toy = compile("gcc", &["examples/toy_jit.c"], Link::Shared, &["-O1"], "adopted-toy");
    let dir = fresh_dir("adopted-toy-files");
    let mut command = perf::command(toy);
    command.arg(root().join("examples/hello.toy")).arg("0.1").env("JITSYM_DIR", &dir);
    assert_adopted(&mut command, &dir, &["pixel", "row", "image", "start"]);
}

/// Runs a program. The file of its first region names the functions.
fn assert_adopted(command: &mut Command, dir: &Path, functions: &[&str]) {
    let child = command.env("JITSYM_ADOPT", "1").spawn().expect("start");
    let path = dir.join(format!("jit-{}-0.so", child.id()));
    assert!(child.wait_with_output().expect("wait").status.success());
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file = object::File::parse(&*bytes).expect("ELF");
    let names: Vec<&str> = file.symbols().filter_map(|symbol| symbol.name().ok()).collect();
    assert!(functions.iter().all(|name| names.contains(name)), "{names:?}");
}

/// The parts of a program whose harness needs more than C has need no more than its headers.
#[test]
fn fragments_compile_as_they_stand() {
    let all = blocks();
    let fragments: BTreeSet<&str> =
        all.iter().filter_map(|block| if let Use::Fragment(name) = block.used() { Some(name) } else { None }).collect();
    for name in fragments {
        let mut text = String::new();
        for header in ["jitsym_control.h", "jitsym_region.h", "stdlib.h", "string.h", "sys/mman.h"]
            .iter()
            .filter(|_| name != "loader")
        {
            let _ = writeln!(text, "#include <{header}>");
        }
        for block in all.iter().filter(|block| block.used() == Use::Fragment(name)) {
            text += &lines_of(block);
        }
        // What a runtime keeps for itself, and its parts do not use.
        compile_part(name, &format!("#pragma GCC diagnostic ignored \"-Wunused-function\"\n{text}"));
    }
    for block in all.iter().filter(|block| block.language == "c" && block.used() == Use::NotRun) {
        compile_statements(&block.place(), &lines_of(block));
    }
}

/// The code in the comments of the headers, which stands apart and is deeper in, and that in the manual pages.
#[test]
fn examples_in_comments_and_pages_compile() {
    let mut examples = Vec::new();
    for header in HEADERS {
        let text = read(header);
        let comments = text.lines().map(|line| line.strip_prefix(" *").unwrap_or_default());
        let comments: Vec<&str> = comments.collect();
        for part in comments.split(|line| line.is_empty()) {
            if part[..].first().is_some_and(|line| line.starts_with("   ") && !line.starts_with("   - ")) {
                examples.push((header.to_owned(), part.join("\n") + "\n"));
            }
        }
    }
    assert_eq!(examples.len(), 1, "{examples:?}");
    let mut synopses = 0;
    for (page, text) in pages::pages().iter().filter(|(page, _)| page.ends_with(".3")) {
        for block in text.split("\n.nf\n").skip(1) {
            let (block, _) = block.split_once("\n.fi\n").expect("an end");
            let code = block.replace("\n.B ", "\n").replace("\\-", "-").replace("\\e", "\\");
            match code.strip_prefix(".B #include") {
                None => examples.push((page.clone(), code + "\n")),
                // A type is there with the header.
                Some(_) if code.contains("\ntypedef ") => {}
                Some(synopsis) => {
                    synopses += 1;
                    compile_part(page, &format!("#include{synopsis}\n"));
                }
            }
        }
    }
    assert!(synopses > include_str!("exports.txt").lines().count() && examples.len() == 2, "{synopses} {examples:?}");
    for (place, text) in examples {
        compile_statements(&place, &text);
    }
}

/// The text of a block for the compiler, which then gives places in the document.
fn lines_of(block: &Block) -> String {
    format!("#line {} \"{}\"\n{}", block.line, block.document, block.text)
}

/// Compiles a harness with the fragments of all documents that are marked for it.
fn compile_harness(name: &str, link: Link, flags: &[&str]) -> PathBuf {
    let dir = scratch_dir(name);
    let mut text = String::new();
    for block in blocks().iter().filter(|block| block.used() == Use::Fragment(name)) {
        let _ = writeln!(text, "{}", lines_of(block));
    }
    std::fs::write(dir.join("fragments.c"), text).expect("write the fragments");
    let include = format!("-I{}", dir.display());
    compile_strictly(&harness(name), link, &[&[&*include, "-D_GNU_SOURCE"], flags].concat(), name)
}

#[test]
fn declarations_are_those_of_the_header() {
    run(&mut perf::command(compile_harness("declarations", Link::Shared, &[])));
}

#[test]
fn fragments_of_a_runtime_do_what_the_text_says() {
    let program = compile_harness("lifecycle", Link::Shared, &[]);
    for (mode, variable, files) in [("off", None, 0), ("on", Some("on"), 2)] {
        let dir = fresh_dir("lifecycle-files");
        let mut command = perf::command(&program);
        command.arg(mode).env("JITSYM_DIR", &dir);
        if let Some(value) = variable {
            command.env("JITSYM", value);
        }
        assert_eq!(stdout(&run(&mut command)), "ok\n");
        assert_eq!(checker::assert_all_described(&dir), files, "{mode}");
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn code_memory_comes_from_the_library() {
    let dir = fresh_dir("regions-files");
    let mut command = perf::command(compile_harness("regions", Link::Shared, &[]));
    assert_eq!(stdout(&run(command.env("JITSYM_DIR", &dir))), "ok\n");
    let files = std::fs::read_dir(&dir).expect("directory").map(|entry| entry.expect("entry").path());
    let files: Vec<Vec<u8>> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "so"))
        .map(|path| std::fs::read(path).expect("file"))
        .collect();
    assert_eq!(files.len(), 3);
    for name in ["in_a_piece", "first_function", "second_function"] {
        let has_name = |file: &&Vec<u8>| {
            let object = object::File::parse(&***file).expect("an ELF file");
            let found = object.symbols().any(|symbol| symbol.name() == Ok(name));
            found
        };
        assert_eq!(files.iter().filter(has_name).count(), 1);
    }
}

#[test]
fn interpreted_functions_have_trampolines() {
    let dir = fresh_dir("trampolines-files");
    let mut command = perf::command(compile_harness("trampolines", Link::Shared, &[]));
    assert_eq!(stdout(&run(command.env("JITSYM_DIR", &dir))), "ok\n");
}

/// The program that writes a marker file.
pub fn spans() -> PathBuf {
    compile_harness("spans", Link::Shared, &[])
}

#[test]
fn marker_files_have_the_spans() {
    let dir = fresh_dir("spans-files");
    let mut command = perf::command(spans());
    let printed = stdout(&run(command.arg(&dir).env("JITSYM_DIR", &dir)));
    let (pid, expected) = printed.split_once('\n').expect("a process");
    let found = std::fs::read_to_string(dir.join(format!("marker-{pid}.txt"))).expect("a marker file");
    let cut = found.strip_prefix(expected).expect("the spans").trim_end_matches('\n');
    assert!(cut.len() == 298 && cut.ends_with('x') && found.ends_with("x\n"), "{found}");
}

#[test]
fn the_loader_finds_the_library_or_does_without() {
    let program = compile_harness("loader", Link::None, &[]);
    let dir = scratch_dir("loader-files");
    let nowhere = PathBuf::from("/nowhere/libjitsym.so");
    let mut command = perf::command(&program);
    command.arg("off").env("JITSYM_LIB", &nowhere).env("JITSYM", "jitdump");
    assert_eq!(stdout(&run(&mut command)), "ok\n");
    for library in [nowhere, artifacts().shared_dir.join("libjitsym.so")] {
        let mut command = perf::command(&program);
        command.arg("on").env("JITSYM_LIB", library).env("JITSYM_DIR", &dir);
        let child = command.spawn().expect("start");
        let map = dir.join(format!("perf-{}.map", child.id()));
        assert!(child.wait_with_output().expect("wait").status.success());
        assert!(std::fs::read_to_string(map).expect("map").ends_with(" 10 by_loader\n"));
    }
}

/// The stacks that perf finds through frames that are described as the text says.
#[test]
fn perf_unwinds_the_worked_examples() {
    let program = compile_harness("frames", Link::Shared, &["-fomit-frame-pointer", "-fno-optimize-sibling-calls"]);
    let dir = scratch_dir("frames-data");
    let (data, injected) = (dir.join("perf.data"), dir.join("jit.data"));
    let record = |pace: u32| {
        let mut record = perf::perf("record");
        record.args(["-q", "-k", "1", "-e", "cpu-clock", "-F", "999", "--call-graph", "dwarf,4096", "-o"]).arg(&data);
        // The shell says its pid, which the program takes over.
        record.args(["sh", "-c", "echo $$; exec \"$0\" $1"]).arg(&program).arg((3 * pace).to_string());
        let pid = {
            let _alone = serial();
            stdout(&run(&mut record)).trim().parse::<u32>().expect("pid")
        };
        let files = TmpFiles(pid);
        run(perf::perf("inject").args(["--jit", "-i"]).arg(&data).arg("-o").arg(&injected));
        let text = stdout(&run(perf::perf("script").args(["--no-inline", "-F", "ip,sym", "-i"]).arg(&injected)));
        (text, files)
    };
    // By code and caller, how many stacks are whole, of how many; and some that are not.
    type Stacks = BTreeMap<(String, String), (usize, usize)>;
    let read = |text: &str| -> (Stacks, String) {
        let (mut stacks, mut wrong) = (Stacks::new(), String::new());
        for sample in text.split("\n\n") {
            let frames: Vec<&str> =
                sample.lines().filter_map(|line| Some(line.trim_start().split_once(' ')?.1)).collect();
            let Some(name) = frames.first().filter(|name| name.starts_with("TRACE_") || **name == "moar frame") else {
                continue;
            };
            let caller = frames.get(1).filter(|caller| caller.starts_with("via_")).unwrap_or(&"nobody");
            let (whole, all) = stacks.entry((name.to_string(), caller.to_string())).or_default();
            *all += 1;
            if *caller != "nobody" && frames.get(2) == Some(&"main") {
                *whole += 1;
            } else if wrong.len() < 2000 {
                let _ = writeln!(wrong, "{}", frames.join(" < "));
            }
        }
        (stacks, wrong)
    };
    let names = ["TRACE_1 root", "TRACE_2 side", "TRACE_3 plain", "moar frame"];
    let callers = ["rbx", "rbp", "r12", "r13", "r14", "r15"].map(|register| format!("via_{register}"));
    let of = |stacks: &Stacks, name: &str, caller: &str| {
        stacks.get(&(name.into(), caller.into())).copied().unwrap_or_default()
    };
    let (stacks, wrong) = until_enough(10, |pace| {
        let (text, _files) = record(pace);
        let (stacks, wrong) = read(&text);
        let counts = names.iter().flat_map(|name| callers.iter().map(|caller| of(&stacks, name, caller).1));
        let fewest = counts.min().unwrap_or(0);
        ((stacks, wrong), fewest)
    });
    println!("{stacks:?}");
    for name in names {
        let mut found = 0;
        for caller in &callers {
            let (whole, all) = of(&stacks, name, caller);
            found += all;
            assert!((all - whole) * 100 <= all.max(200), "{name}, {caller}: {whole} of {all} whole:\n{wrong}");
        }
        // A register that has just been popped is not in the stack that perf copies.
        let (_, lost) = of(&stacks, name, "nobody");
        assert!(lost * 100 <= found.max(300), "{name}: {lost} without a caller, and {found} with one:\n{wrong}");
    }
}

/// Runs the commands of all documents, each document's in a directory of its own, where `vm` is its program or the toy.
#[test]
fn commands_do_what_the_text_says() {
    let toy = compile("gcc", &["examples/toy_jit.c"], Link::Static, &["-O1"], "toy_jit");
    let blocks = blocks();
    let documents: BTreeSet<&str> = blocks.iter().map(|block| &*block.document).collect();
    for document in documents {
        let own = blocks.iter().find(|block| block.document == document && matches!(block.used(), Use::Program(_)));
        let vm = own.map_or_else(|| toy.clone(), |block| compile_program(block, Link::Static));
        let sandbox = Sandbox::new(document, &vm);
        for block in blocks.iter().filter(|block| block.document == document) {
            let Use::Shell { container, expect } = block.used() else { continue };
            if container && !is_root("start a container") {
                continue;
            }
            let _alone = serial();
            let mut shell = sandbox.shell(&block.text);
            let inhabitant = container.then(|| Container::new(&toy));
            if let Some(container) = &inhabitant {
                shell.env("pid", container.pid.to_string());
            }
            let output = try_run(&mut shell);
            let right = output.status.success() && expect.is_none_or(|text| stdout(&output).contains(text));
            assert!(right, "{}, {expect:?} expected: {}", block.place(), describe(&shell, &output));
        }
    }
}

/// Every link to another place in the tree leads somewhere, and to a heading that is there.
#[test]
fn links_lead_somewhere() {
    let anchors = |document: &Path| -> BTreeSet<String> {
        let text = std::fs::read_to_string(document).expect("document");
        let headings = text.lines().filter_map(|line| Some(line.strip_prefix('#')?.trim_start_matches('#').trim()));
        headings
            .map(|heading| {
                let letters = heading.to_lowercase().replace(' ', "-");
                letters.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
            })
            .collect()
    };
    let mut count = 0;
    for document in documents() {
        let here = root().join(&document);
        let text = read(&document);
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let to = if file.is_empty() { here.clone() } else { here.parent().expect("directory").join(file) };
            assert!(to.exists(), "{document}: {target}");
            assert!(heading.is_empty() || anchors(&to).contains(heading), "{document}: {target}");
            count += 1;
        }
    }
    assert!(count > 50, "{count}");
}

/// Where the library is introduced, each place where it writes symbols is named; none is forgotten where all are meant.
#[test]
fn every_sink_is_named_where_the_library_is_introduced() {
    let header = read("include/jitsym.h");
    let sinks = header.lines().filter_map(|line| line.strip_prefix("  JITSYM_SINK_")?.split_once(" = "));
    let sinks: Vec<String> = sinks.map(|(name, _)| name.to_lowercase()).collect();
    assert!(sinks.len() >= 3, "{sinks:?}");
    for (file, start, end) in [
        ("README.md", "# libjitsym\n", "\n## "),
        ("libjitsym.3", ".SH DESCRIPTION\n", ".PP\n"),
        ("libjitsym.3", ".SH FILES\n", ".SH "),
        ("src/lib.rs", "", "//! ```\n"),
        ("scripts/deb.sh", "package \"$library\"", "\nEND\n"),
    ] {
        let text = pages::pages().remove(file).unwrap_or_else(|| read(file));
        let (_, rest) = text.split_once(start).expect("the beginning");
        let (text, _) = rest.split_once(end).expect("the end");
        for sink in &sinks {
            assert!(text.to_lowercase().contains(sink.as_str()), "{file} does not name {sink}: {text}");
        }
    }
    for file in documents().into_iter().chain(HEADERS.map(str::to_owned)) {
        let text = read(&file).replace("\n * ", " ").split_whitespace().collect::<Vec<_>>().join(" ");
        for stale in ["both sinks", "two sinks", "the other sink ", "the other sink."] {
            assert!(!text.contains(stale), "{file}: {stale}");
        }
    }
}

/// Whoever opens the page reads it to its end.
#[test]
fn the_readme_is_short() {
    let lines = read("README.md").lines().count();
    assert!(lines <= 120, "{lines} lines");
}

#[test]
fn the_link_line_for_static_libraries_is_the_tested_one() {
    assert!(read("docs/linking.md").contains(&format!("lib/libjitsym.a {}`", STATIC_LIBS.join(" "))));
}

#[test]
fn every_variable_of_the_environment_is_documented() {
    let source = std::fs::read_to_string(root().join("src/session/config.rs")).expect("source");
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let is_variable = |text: &&str| text.len() > 3 && text.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    let variables: BTreeSet<&str> = code.split('"').filter(is_variable).collect();
    assert!(variables.len() >= 12, "{variables:?}");
    for (document, variable) in
        ["docs/conventions.md", "docs/users.md"].iter().flat_map(|d| variables.iter().map(move |v| (d, v)))
    {
        let text = read(document);
        let rows =
            text.lines().filter(|line| line.starts_with("| `")).map(|line| line.split(" |").next().unwrap_or_default());
        assert!(rows.into_iter().any(|row| row.contains(&format!("`{variable}`"))), "{document}: {variable}");
    }
}
