//! `jitsym clean --injected`: what the real perf has made of a recording goes, and what is somebody else's stays.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::perf::{self, Recording};
use crate::support::{fresh_dir, perf_words, run, stdout};

/// All files and links below a directory.
fn below(dir: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(dir).expect("directory").flatten() {
        match entry.file_type().expect("type").is_dir() {
            true => found.extend(below(&entry.path())),
            false => drop(found.insert(entry.path())),
        }
    }
    found
}

/// Runs the program in a home of its own.
fn clean(home: &Path, dir: &Path, options: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_jitsym"));
    stdout(&run(command.env("HOME", home).args(["clean", "--injected"]).args(options).arg("--dir").arg(dir)))
}

#[test]
fn what_perf_has_made() {
    let recording =
        Recording::with_stacks("clean", perf::program(), &["scenario=stacks", "layout=packed", "seconds=0.2"]);
    recording.inject();
    let dead = recording.truth.pid;
    let made = recording.truth.paths["jitdump"].parent().expect("directory");
    let (dir, home) = (fresh_dir("clean-objects"), fresh_dir("clean-home"));
    let cache = home.join(".debug");
    let mut objects: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(made).expect("directory").flatten() {
        let name = entry.file_name().into_string().expect("name");
        if name.starts_with(&format!("jitted-{dead}-")) && !name.contains("-r") {
            std::fs::copy(entry.path(), dir.join(&name)).expect("copy");
            objects.push(dir.join(name));
        }
    }
    assert!(objects.len() >= 4, "{objects:?}");
    // Of a process that lives, and of another program, whatever they are called.
    let alive = dir.join(format!("jitted-{}-1.so", std::process::id()));
    std::fs::copy(&objects[0], &alive).expect("copy");
    let foreign = dir.join(format!("jitted-{dead}-77777.so"));
    let source = home.join("one.c");
    std::fs::write(&source, "int one(void) { return 1; }\n").expect("write");
    let mut cc = Command::new("gcc");
    run(cc.args(["-shared", "-nostdlib", "-Wl,--build-id", "-o"]).args([&foreign, &source]));
    let text = dir.join(format!("jitted-{dead}-88888.so"));
    std::fs::write(&text, "precious").expect("write");
    let more = dir.join(format!("jitted-{dead}-99999.so"));
    std::fs::copy(&objects[1], &more).expect("copy");
    for object in [&objects[0], &alive, &foreign, &more] {
        let mut add = Command::new("env");
        add.args(perf_words("buildid-cache"))
            .arg("--buildid-dir")
            .arg(&cache)
            .args(["buildid-cache", "-a"])
            .arg(object);
        run(&mut add);
    }
    // Somebody has put something of their own there.
    let entry = below(&cache)
        .into_iter()
        .find(|path| path.ends_with("elf") && path.starts_with(cache.join(more.strip_prefix("/").expect("absolute"))));
    let note = entry.expect("the entry").with_file_name("note");
    std::fs::write(&note, "precious").expect("write");
    std::fs::remove_file(&more).expect("remove");

    let before = (below(&dir), below(&cache));
    let planned = clean(&home, &dir, &["--dry-run"]);
    assert_eq!((below(&dir), below(&cache)), before, "a dry run removes nothing");
    assert!(planned.contains(&format!("{} files would be removed (", objects.len() + 1)), "{planned}");
    assert!(clean(&home, &dir, &["--older-than", "1d"]).contains("0 files removed (0 bytes), 0 kept"));
    assert_eq!((below(&dir), below(&cache)), before, "they are not so old");
    run(Command::new("touch").args(["-d", "2 days ago"]).arg(&objects[2]));
    run(Command::new("touch").args(["-d", "12 hours ago"]).arg(&objects[3]));
    clean(&home, &dir, &["--older-than", "1d"]);
    let mut left = before.0.clone();
    assert!(left.remove(&objects[2]));
    assert_eq!(below(&dir), left, "that is");

    let said = clean(&home, &dir, &[]);
    // The dump itself is not there.
    assert_eq!(below(&dir), BTreeSet::from([alive.clone(), foreign.clone(), text.clone()]), "{said}");
    let gone: Vec<PathBuf> = before.1.difference(&below(&cache)).cloned().collect();
    let first = cache.join(objects[0].strip_prefix("/").expect("absolute"));
    assert!(gone.iter().any(|path| path.starts_with(&first)) && !first.exists(), "{said}");
    // Files of that entry, and the link that led there.
    let links = gone.iter().filter(|path| path.starts_with(cache.join(".build-id"))).count();
    assert!(
        links <= 1 && gone.iter().all(|path| path.starts_with(&first) || path.starts_with(cache.join(".build-id"))),
        "{gone:?}"
    );
    assert!(note.exists() && note.with_file_name("elf").exists(), "{said}");
    for reason in ["lives", "makes no such objects", "files in it that perf does not make"] {
        assert!(said.lines().any(|line| line.starts_with("kept ") && line.contains(reason)), "{reason}: {said}");
    }
    assert!(
        said.lines().last().is_some_and(|line| line.starts_with(&format!("{} files removed (", objects.len()))),
        "{said}"
    );
    for dir in [dir, home] {
        std::fs::remove_dir_all(dir).expect("remove the directory");
    }
}

/// A link in the cache leads to nothing that is removed.
#[test]
fn links_in_the_cache() {
    let (dir, home) = (fresh_dir("clean-links"), fresh_dir("clean-links-home"));
    let mut child = Command::new("true").spawn().expect("start");
    child.wait().expect("end");
    let dead = child.id();
    // Somebody else's entry, as it were, and a link that leads there.
    let id = "0123456789abcdef0123456789abcdef01234567";
    let elsewhere = home.join("elsewhere");
    std::fs::create_dir_all(elsewhere.join(id)).expect("directory");
    std::fs::write(elsewhere.join(id).join("elf"), "precious").expect("write");
    let entry = home.join(format!(".debug/tmp/jit-{dead}-0.so"));
    std::fs::create_dir_all(&entry).expect("directory");
    std::os::unix::fs::symlink(elsewhere.join(id), entry.join(id)).expect("link");
    let second = home.join(format!(".debug/tmp/jit-{dead}-1.so"));
    std::os::unix::fs::symlink(&elsewhere, &second).expect("link");
    // The control: an entry of the same kind.
    let own = home.join(format!(".debug/tmp/jit-{dead}-2.so")).join(id);
    std::fs::create_dir_all(&own).expect("directory");
    std::fs::write(own.join("elf"), "x").expect("write");
    let before = below(&elsewhere);

    let said = clean(&home, &dir, &[]);
    assert_eq!(below(&elsewhere), before, "{said}");
    assert!(std::fs::symlink_metadata(entry.join(id)).is_ok() && std::fs::symlink_metadata(&second).is_ok(), "{said}");
    assert!(!own.exists(), "{said}");
    for dir in [dir, home] {
        std::fs::remove_dir_all(dir).expect("remove the directory");
    }
}

/// Objects of `jitsym inject` go like those of perf, in their directory and in perf's cache.
#[test]
fn own_objects() {
    let recording = Recording::with_stacks("clean-own", perf::program(), &["scenario=stacks", "seconds=0.2"]);
    let (dir, home) = (fresh_dir("clean-own-objects"), fresh_dir("clean-own-home"));
    let mut inject = Command::new(env!("CARGO_BIN_EXE_jitsym"));
    run(inject
        .arg("inject")
        .arg("-i")
        .arg(&recording.data)
        .arg("-o")
        .arg(home.join("jit.data"))
        .arg("--objects")
        .arg(&dir));
    let objects = below(&dir);
    let name = format!("jitcode-{}-", recording.truth.pid);
    let is_own = |path: &PathBuf| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&name));
    assert!(!objects.is_empty() && objects.iter().all(is_own), "{objects:?}");
    let cache = home.join(".debug");
    for object in &objects {
        let mut add = Command::new("env");
        add.args(perf_words("buildid-cache"))
            .arg("--buildid-dir")
            .arg(&cache)
            .args(["buildid-cache", "-a"])
            .arg(object);
        run(&mut add);
    }
    // An object whose tables lie far behind its code.
    let bytes = std::fs::read(objects.first().expect("an object")).expect("read");
    let sections = u64::from_le_bytes(bytes[40..48].try_into().expect("e_shoff"));
    let far = std::fs::File::create(dir.join(format!("{name}{}.so", "1".repeat(40)))).expect("create");
    far.write_all_at(&bytes, 0).expect("write");
    far.write_all_at(&bytes[sections as usize..], sections + (300 << 20)).expect("write");
    far.write_all_at(&(sections + (300 << 20)).to_le_bytes(), 40).expect("write");
    drop(far);
    let foreign = dir.join(format!("{name}{}.so", "0".repeat(40)));
    std::fs::write(&foreign, "precious").expect("write");
    assert!(!below(&cache).is_empty());
    let said = clean(&home, &dir, &[]);
    assert_eq!(below(&dir), BTreeSet::from([foreign]), "{said}");
    assert!(!below(&cache).iter().any(|path| path.to_string_lossy().contains(&name)), "{said}");
    assert!(said.contains("`jitsym inject` makes no such objects"), "{said}");
    for dir in [dir, home] {
        std::fs::remove_dir_all(dir).expect("remove the directory");
    }
}
