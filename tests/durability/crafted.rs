//! Spools that somebody has made to name other files than those of the dead process: no byte of those changes, whoever recovers.
//!
//! Each begins as the spool of a process that was killed with records on their way, and is then given other paths, identities and
//! lengths. Beside those that must not be followed there are some that are as they should be: they are completed.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{symlink, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::UNIX_EPOCH;

use super::plan::{rounds, Plan, Random, RECOVER};
use super::recover::{recover, recover_command, Report};
use super::run::{fresh_dir, Run, SpoolDir};
use crate::support::{lock_range, run_to_its_end};

/// Where things are in a spool: see `src/queue/spool/layout.rs`.
const PID_NAMESPACE: usize = 40;
const COMMITTED: usize = 56;
/// Bytes that a process publishes for readers.
const PUBLISHED: usize = 1696;
const STATES: [usize; 2] = [64 + PUBLISHED, 152 + PUBLISHED];
const MAP_IS_SHARED: usize = 16;
const MAP: usize = 24;
const DUMP: usize = 56;
const NEXT_MAP: usize = 240 + PUBLISHED;
const AWAITED: usize = 264 + PUBLISHED;
/// Its lowest bit says which of the two `FILES` is valid.
const FILES_SET: usize = 272 + PUBLISHED;
const FILES: [usize; 2] = [280 + PUBLISHED, 280 + PUBLISHED + 8 + 2 * (8 + PATH_ROOM)];
const PATH_ROOM: usize = 1088;

/// Says that a file is the library's.
pub const MARK: u32 = 0o1000;

/// How many spools a session leaves alone that does not ask for recovery.
const LEFT_ALONE: usize = 16;

/// Device, inode and time of birth, as a spool has them.
pub fn identity(path: &Path) -> [u64; 3] {
    let data = fs::symlink_metadata(path).expect("file");
    let born = data.created().expect("a file system that says when a file was made");
    [data.dev(), data.ino(), born.duration_since(UNIX_EPOCH).expect("time").as_nanos() as u64]
}

/// Everything about a file that nobody may change; of a link, of what it leads to as well.
fn look(path: &Path) -> impl PartialEq + std::fmt::Debug {
    let all = |data: fs::Metadata| (data.ino(), data.mode(), data.nlink(), data.uid(), data.mtime(), data.mtime_nsec());
    let link = all(fs::symlink_metadata(path).expect("file"));
    let text = String::from_utf8_lossy(&fs::read(path).expect("file")).into_owned();
    (link, all(fs::metadata(path).expect("file")), text)
}

/// What a spool is made to say.
#[derive(Clone, Debug)]
struct Case {
    /// What it is about, and its directory.
    name: &'static str,
    /// Where the word is that says which file it is: `MAP` or `DUMP`.
    which: usize,
    path: PathBuf,
    identity: [u64; 3],
    len: u64,
    /// As the file that was about to replace the one that the spool knows.
    is_next: bool,
    shared: bool,
    pid_namespace: Option<u64>,
}

impl Case {
    fn new(name: &'static str, which: usize, path: &Path) -> Case {
        let len = if which == DUMP { 40 } else { 0 };
        let (path, identity) = (path.to_path_buf(), identity(path));
        Case { name, which, path, identity, len, is_next: false, shared: false, pid_namespace: None }
    }
}

/// The spool of a killed process, to be given other contents.
struct Template {
    run: Run,
    bytes: Vec<u8>,
    /// How the names of its spools begin.
    prefix: String,
}

impl Template {
    fn new(random: &mut Random) -> Template {
        let seed = random.number() >> 1;
        let plan = Plan { threads: 1, calls: 50, seed, slow_disk: "block_at=41".into(), ..Plan::default() };
        let mut run = Run::start("template", Plan { max_memory: 1 << 20, large: 0, ..plan });
        run.wait_until("the end of the calls", |truth| truth.done);
        run.kill();
        let [path] = run.spool.spools().try_into().expect("one spool");
        let bytes = fs::read(&path).expect("spool");
        let name = path.file_name().and_then(|name| name.to_str()).expect("name");
        let prefix = name.rsplit_once('-').expect("three numbers").0.to_string();
        let template = Template { run, bytes, prefix };
        for (which, path) in [(MAP, template.run.map()), (DUMP, template.run.dump())] {
            let at = template.path_at(which);
            let path = path.as_os_str().as_bytes();
            assert_eq!(template.word(at), path.len() as u64, "the layout of spools has changed");
            assert_eq!(&template.bytes[at + 8..at + 8 + path.len()], path, "the layout of spools has changed");
        }
        template
    }

    fn word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.bytes[at..at + 8].try_into().expect("eight bytes"))
    }

    /// Where the length of the path of a file lies, before the path itself.
    fn path_at(&self, which: usize) -> usize {
        let files = FILES[(self.word(FILES_SET) & 1) as usize] + 8;
        if which == MAP {
            files
        } else {
            files + 8 + PATH_ROOM
        }
    }

    /// The names that the files of the process have.
    fn own_name(&self, which: usize) -> String {
        let pid = self.run.pid();
        if which == MAP {
            format!("perf-{pid}.map")
        } else {
            format!("jit-{pid}.dump")
        }
    }

    fn header_of_dump(&self) -> Vec<u8> {
        let mut header = fs::read(self.run.dump()).expect("dump");
        header.truncate(40);
        header
    }

    fn spool(&self, case: &Case) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        let mut set = |at: usize, words: &[u64]| {
            let new: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            bytes[at..at + new.len()].copy_from_slice(&new);
        };
        let [device, inode, born] = case.identity;
        let last = self.word(COMMITTED);
        let is_awaited = case.is_next && (case.which == DUMP || case.name.contains("awaited"));
        for (at, state) in STATES.into_iter().enumerate() {
            // A file that is awaited is that of the last pass, which was committed by giving it the name.
            let is_other = case.is_next && !(is_awaited && at as u64 == last & 1);
            set(state + MAP_IS_SHARED, &[case.shared.into()]);
            set(state + (MAP + DUMP - case.which), &[0; 4]);
            set(state + case.which, &[device, inode + u64::from(is_other), born, case.len]);
        }
        let is_next_map = case.is_next && case.which == MAP;
        set(NEXT_MAP, &if is_next_map { case.identity } else { [0; 3] });
        set(AWAITED, &[if is_awaited { last } else { 0 }]);
        set(COMMITTED, &[last - u64::from(is_awaited)]);
        if let Some(namespace) = case.pid_namespace {
            set(PID_NAMESPACE, &[namespace]);
        }
        let path = case.path.as_os_str().as_bytes();
        let at = self.path_at(case.which);
        set(at, &[path.len() as u64]);
        bytes[at + 8..at + 8 + PATH_ROOM].fill(0);
        bytes[at + 8..at + 8 + path.len()].copy_from_slice(path);
        bytes
    }

    /// Puts a spool into a directory, as the one that was made at a time.
    fn put(&self, dir: &Path, made: usize, bytes: &[u8]) -> PathBuf {
        let path = dir.join(format!("{}-{made:x}.spool", self.prefix));
        // One that others may read is none.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).expect("spool");
        file.write_all(bytes).expect("spool");
        path
    }
}

/// Makes a file with these bits and this text.
pub fn file(path: &Path, mode: u32, text: &[u8]) {
    fs::create_dir_all(path.parent().expect("directory")).expect("directory");
    fs::write(path, text).expect("file");
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("mode");
}

const TEXT: &[u8] = b"somebody's text\nand some more of it\n";
const KEY: &[u8] = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE somebody@somewhere\n";
const LINES: &[u8] = b"1000 10 known\n2000 10 known too\n";

/// Files that no spool of the process can name.
fn bad_cases(template: &Template, dir: &Path) -> Vec<Case> {
    let mut cases = Vec::new();
    let own = |which| template.own_name(which);
    let header = template.header_of_dump();
    let mut add = |name: &'static str, which: usize, file_name: &str, mode: u32, text: &[u8]| {
        let path = dir.join(name).join(file_name);
        file(&path, mode, text);
        cases.push(Case::new(name, which, &path));
    };
    add("text", MAP, "notes", 0o644, TEXT);
    add("name that acts on terminals", MAP, "notes\x1b[2J", 0o644, TEXT);
    add("text marked", MAP, "notes", MARK | 0o644, TEXT);
    add("key", MAP, "authorized_keys", 0o600, KEY);
    add("key marked", MAP, "authorized_keys", MARK | 0o600, KEY);
    add("key as a shared map", MAP, "authorized_keys", MARK | 0o600, KEY);
    add("text as a dump", DUMP, "notes", 0o644, &TEXT.repeat(10));
    add("key as a dump", DUMP, "authorized_keys", 0o600, KEY);
    add("key as a marked dump", DUMP, "authorized_keys", MARK | 0o600, KEY);
    add("map without a mark", MAP, &own(MAP), 0o644, LINES);
    add("map that is next without a mark", MAP, &own(MAP), 0o644, LINES);
    add("map that is text", MAP, &own(MAP), MARK | 0o644, TEXT);
    add("map with text in it", MAP, &own(MAP), MARK | 0o644, &[LINES, TEXT].concat());
    add("shared map that is text", MAP, &own(MAP), MARK | 0o644, TEXT);
    add("map of another pid", MAP, &format!("perf-{}.map", template.run.pid() + 1), MARK | 0o644, LINES);
    add("map of a longer name", MAP, &format!("x{}", own(MAP)), MARK | 0o644, LINES);
    add("map that is a dump", MAP, &own(DUMP), MARK | 0o644, LINES);
    add("map without birth", MAP, &own(MAP), MARK | 0o644, LINES);
    add("map that is next without birth", MAP, &own(MAP), MARK | 0o644, LINES);
    add("map with another name", MAP, &own(MAP), MARK | 0o644, LINES);
    add("map behind a link", MAP, "map", MARK | 0o644, LINES);
    add("map that is a link", MAP, "map", MARK | 0o644, LINES);
    add("dump without a mark", DUMP, &own(DUMP), 0o644, &header);
    add("dump that is text", DUMP, &own(DUMP), MARK | 0o644, &TEXT.repeat(10));
    add("dump that is a map", DUMP, &own(MAP), MARK | 0o644, &header);
    add("dump with too many zeros", DUMP, &own(DUMP).replacen('-', "-0000000000", 1), MARK | 0o644, &header);
    add("dump without birth", DUMP, &own(DUMP), MARK | 0o644, &header);
    add("dump cut within its header", DUMP, &own(DUMP), MARK | 0o644, &header);
    add("dump that is next without birth", DUMP, &own(DUMP), MARK | 0o644, &header);
    add("dump with another name", DUMP, &own(DUMP), MARK | 0o644, &header);
    let mut of_another = header.clone();
    of_another[20..24].copy_from_slice(&(template.run.pid() + 1).to_ne_bytes());
    add("dump with another pid", DUMP, &own(DUMP), MARK | 0o644, &of_another);
    for case in &mut cases {
        let beside = case.path.with_file_name("beside");
        case.shared = case.name.contains("shared");
        case.is_next = case.name.contains("next");
        match case.name {
            name if name.contains("without birth") => case.identity[2] = 0,
            name if name.contains("another name") => fs::hard_link(&case.path, beside).expect("link"),
            name if name.contains("link") => {
                let link = case.path.with_file_name(template.own_name(MAP));
                symlink(&case.path, &link).expect("link");
                // Of the file that it leads to, or its own.
                let identity = identity(if name.contains("behind") { &case.path } else { &link });
                (case.path, case.identity) = (link, identity);
            }
            name if name.contains("cut") => case.len = 8,
            _ => {}
        }
    }
    cases
}

/// Files that are the process's own as far as anybody can see.
fn good_cases(template: &Template, dir: &Path) -> Vec<Case> {
    let own = |which| template.own_name(which);
    let mut cases = Vec::new();
    let mut add = |name: &'static str, which: usize, file_name: &str, text: &[u8]| {
        let path = dir.join(name).join(file_name);
        let mode = if name.contains("private") { 0o600 } else { 0o644 };
        file(&path, MARK | mode, text);
        let mut case = Case::new(name, which, &path);
        (case.is_next, case.shared) = (name.contains("next"), name.contains("shared"));
        if name.contains("directory") {
            let link = dir.join("link to it");
            symlink(path.parent().expect("directory"), &link).expect("link");
            case.path = link.join(file_name);
        }
        cases.push(case);
    };
    add("good private map", MAP, &own(MAP), LINES);
    add("good map that is next", MAP, &own(MAP), LINES);
    add("good map that is next, awaited", MAP, &own(MAP), LINES);
    add("good shared map", MAP, &own(MAP), &[LINES, TEXT].concat());
    add("good map behind a directory that is a link", MAP, &own(MAP), LINES);
    add("good empty map", MAP, &own(MAP), b"");
    let header = template.header_of_dump();
    add("good dump", DUMP, &own(DUMP), &header);
    add("good dump with zeros", DUMP, &own(DUMP).replacen('-', "-000", 1), &header);
    add("good dump that is next", DUMP, &own(DUMP), &header);
    cases
}

/// That the records of the process are in a file, beside what was there.
fn check_completed(case: &Case, way: &str) {
    let bytes = fs::read(&case.path).expect("file");
    let has = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    assert!((0..50).all(|number| has(&format!("kill 0 {number}"))), "{way}: {case:?}: not complete");
    let kept = case.which == DUMP || case.name.contains("empty") || has("1000 10 known\n");
    assert!(kept, "{way}: {case:?}: lines are lost");
    let mode = fs::metadata(&case.path).expect("file").mode() & 0o7777;
    let expected = MARK | if case.name.contains("private") { 0o600 } else { 0o644 };
    assert_eq!(mode, expected, "{way}: {case:?}: has the mode {mode:o}");
}

/// Whatever a spool names, only the files of its process are completed: by the program, by a session that asks for it, and by one
/// that does not among more spools than such a session leaves alone.
#[test]
fn only_its_own_files() {
    let mut random = Random::new("only_its_own_files");
    let template = Template::new(&mut random);
    for way in ["program", "flag", "variable", "by itself"] {
        let (dir, place) = (fresh_dir("crafted"), SpoolDir::new("crafted"));
        let (bad, good) = (bad_cases(&template, &dir), good_cases(&template, &dir));
        for (made, case) in bad.iter().chain(&good).enumerate() {
            template.put(&place.0, made, &template.spool(case));
        }
        let paths: Vec<&Path> = bad.iter().map(|case| &*case.path).collect();
        let before: Vec<_> = paths.iter().map(|path| look(path)).collect();
        let count = |case: &Case| fs::read_dir(case.path.parent().expect("directory")).expect("directory").count();
        let counts: Vec<usize> = bad.iter().map(count).collect();
        if way == "program" {
            let output = recover(&place.0, &[]);
            let reports = Report::parse(&output);
            assert_eq!(reports.len(), bad.len() + good.len(), "{output:?}");
            for (report, case) in reports.iter().zip(bad.iter().chain(&good)) {
                let path = case.path.to_string_lossy().replace('\x1b', "\\u{1b}");
                let is_refused = report.complaints.iter().any(|text| text.contains(&path));
                assert_eq!(is_refused, !case.name.starts_with("good"), "{case:?}: {report:?}");
            }
        } else {
            // Newer ones, which are the ones left alone.
            let of_template = template.run.spool.spools();
            let newest = bad.len() + good.len()..bad.len() + good.len() + LEFT_ALONE;
            if way == "by itself" {
                newest.for_each(|made| drop(template.put(&place.0, made, &fs::read(&of_template[0]).expect("spool"))));
            }
            let (flags, variable) = match way {
                "flag" => (RECOVER, "JITSYM_TEST"),
                "variable" => (0, "JITSYM_RECOVER"),
                _ => (0, "JITSYM_TEST"),
            };
            let spool = place.0.display().to_string();
            let plan = Plan { threads: 1, calls: 1, flags, close: 1, ..Plan::default() };
            let mut next = Run::start_with("next", plan, &[], &[("JITSYM_SPOOL_DIR", &spool), (variable, "1")]);
            next.wait_ok();
            let expected = if way == "by itself" { LEFT_ALONE } else { 0 };
            assert_eq!(place.spools().len(), expected, "{way}: {:?}", place.spools());
        }
        let touched = bad.iter().zip(&before).filter(|(case, before)| *before != &look(&case.path));
        let touched: Vec<&str> = touched.map(|(case, _)| case.name).collect();
        assert!(touched.is_empty(), "{way}: {touched:?} were touched");
        for (case, before) in bad.iter().zip(counts) {
            assert_eq!(before, count(case), "{way}: {case:?}: something was made beside it");
        }
        good.iter().for_each(|case| check_completed(case, way));
        fs::remove_dir_all(dir).expect("remove the files");
    }
}

/// A file that a living process has locked is not completed, unless the process that the spool is of is known to be dead: then
/// it is a child of that which has the file. It is completed when nobody has it any more.
#[test]
fn files_of_the_living() {
    let mut random = Random::new("files_of_the_living");
    let template = Template::new(&mut random);
    for which in [MAP, DUMP] {
        for is_visible in [false, true] {
            let (dir, place) = (fresh_dir("living"), SpoolDir::new("living"));
            let path = dir.join(template.own_name(which));
            file(&path, MARK | 0o644, if which == MAP { LINES.into() } else { template.header_of_dump() }.as_slice());
            let mut case = Case::new("good", which, &path);
            case.pid_namespace = (!is_visible).then_some(1);
            template.put(&place.0, 1, &template.spool(&case));
            let held = File::options().write(true).open(&path).expect("file");
            assert!(lock_range(&held, libc::F_WRLCK));
            let before = look(&path);
            let output = recover(&place.0, &[]);
            if !is_visible {
                assert_eq!(before, look(&path), "{output:?}");
                assert_eq!(place.spools().len(), 1, "{output:?}");
                assert!(Report::parse(&output)[0].complaints[0].contains("living process"), "{output:?}");
                // Not by closing it: a program that another test has just started may have it open too, until it is executed.
                assert!(lock_range(&held, libc::F_UNLCK));
                // What a reader has locked is nobody's for that.
                let reader = File::open(&path).expect("file");
                assert!(lock_range(&reader, libc::F_RDLCK));
                recover(&place.0, &[]);
            }
            check_completed(&case, "after the living");
            assert!(place.spools().is_empty());
            fs::remove_dir_all(dir).expect("remove the files");
        }
    }
}

/// A recovery that ends just before it removes the spool has said there which file has replaced the map: the next one takes it.
#[test]
fn begun_again() {
    let mut random = Random::new("begun_again");
    let template = Template::new(&mut random);
    for which in [MAP, DUMP] {
        let (dir, place) = (fresh_dir("again"), SpoolDir::new("again"));
        let path = dir.join(template.own_name(which));
        file(&path, MARK | 0o644, if which == MAP { LINES.into() } else { template.header_of_dump() }.as_slice());
        let case = Case::new("good", which, &path);
        let spool = template.put(&place.0, 1, &template.spool(&case));
        let kept = place.0.with_file_name("kept");
        fs::hard_link(&spool, &kept).expect("a second name");
        let mut completed = Vec::new();
        for _ in 0..2 {
            let output = recover(&place.0, &[]);
            let [report] = Report::parse(&output).try_into().expect("one report");
            // The map says what it lacks; a jitdump is begun again.
            let records = if which == MAP && !completed.is_empty() { 0 } else { 50 };
            assert!(report.complaints.is_empty() && report.records == records, "{report:?}");
            check_completed(&case, "again");
            completed.push(fs::read(&path).expect("file"));
            let _ = fs::hard_link(&kept, &spool);
        }
        assert!(completed[0] == completed[1], "{}", String::from_utf8_lossy(&completed[1]));
        fs::remove_dir_all(dir).expect("remove the files");
    }
}

/// A recovery that has failed to write the map, because there was no room, is begun again. The process was killed just after another file
/// had got the map's name: alone, which commits the pass, or beside a jitdump.
#[test]
fn begun_again_with_a_file_that_was_next() {
    let mut random = Random::new("begun_again_with_a_file_that_was_next");
    let template = Template::new(&mut random);
    // More than the first recovery may write.
    const MOST: u64 = 8192;
    let more: String = (0..1000).map(|number| format!("{:x} 10 more\n", 0x3000 + number * 16)).collect();
    for name in ["good map that is next, awaited", "good map that is next"] {
        let (dir, place) = (fresh_dir("next"), SpoolDir::new("next"));
        let path = dir.join(template.own_name(MAP));
        file(&path, MARK | 0o644, &[LINES, more.as_bytes()].concat());
        let case = Case { is_next: true, ..Case::new(name, MAP, &path) };
        template.put(&place.0, 1, &template.spool(&case));
        let mut command = recover_command(&place.0, &[]);
        // SAFETY: it makes a system call.
        unsafe {
            command.pre_exec(|| {
                let limit = libc::rlimit { rlim_cur: MOST, rlim_max: MOST };
                libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
                libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
                Ok(())
            });
        }
        let output = run_to_its_end(&mut command);
        let [report] = Report::parse(&output).try_into().expect("one report");
        assert!(report.complaints.len() == 1 && place.spools().len() == 1, "{name}: {report:?}");
        let [report] = Report::parse(&recover(&place.0, &[])).try_into().expect("one report");
        assert!(report.complaints.is_empty() && report.records == 50, "{name}: {report:?}");
        assert!(place.spools().is_empty());
        check_completed(&case, "again");
        fs::remove_dir_all(dir).expect("remove the files");
    }
}

/// A spool that says more than there is memory behind it does not make whoever recovers it take that much.
#[test]
fn larger_than_it_is() {
    let mut random = Random::new("larger_than_it_is");
    let template = Template::new(&mut random);
    let dir = fresh_dir("larger");
    let path = dir.join(template.own_name(MAP));
    file(&path, MARK | 0o644, LINES);
    let header = template.spool(&Case::new("larger", MAP, &path));
    let units = template.word(16) as usize;
    let (unit, page) = (256 << 10, 4096);
    // Where chunks begin, and the head of the one that the process had.
    let begin = template.bytes.len() - units * unit;
    let directory = FILES[1] + 8 + 2 * (8 + PATH_ROOM);
    // The number of records comes first, then the size.
    let mut chunks = (begin..template.bytes.len()).step_by(unit).map(|at| &template.bytes[at..at + page]);
    let mut head = chunks.rfind(|head| head[..4] != [0; 4]).expect("a chunk with records").to_vec();
    // One of 1 GiB, of which there is the head alone.
    let units = 4096;
    head[4..8].copy_from_slice(&((units * unit) as u32).to_ne_bytes());
    let begin = (directory + 4 * units).next_multiple_of(page);
    let place = SpoolDir::new("larger");
    let spool = template.put(&place.0, 1, &header[..directory]);
    let file = OpenOptions::new().write(true).open(spool).expect("spool");
    file.set_len((begin + units * unit) as u64).expect("a long file");
    file.write_all_at(&(units as u64).to_ne_bytes(), 16).expect("header");
    file.write_all_at(&[&(units as u32).to_ne_bytes(), &[0xff; 4].repeat(units - 1)[..]].concat(), directory as u64)
        .expect("directory");
    file.write_all_at(&head, begin as u64).expect("head");
    let mut recovery = recover_command(&place.0, &[]).stdout(Stdio::null()).spawn().expect("recover");
    let peak = peak_of(&mut recovery);
    assert!(peak < 256 << 10, "{peak} KiB");
    assert_eq!(fs::read(&path).expect("map"), LINES);
    fs::remove_dir_all(dir).expect("remove the files");
}

/// The most memory that a child has had by its end, in KiB.
fn peak_of(child: &mut Child) -> i64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    let mut status = 0;
    // SAFETY: the pointers are valid, and the child is nobody else's to wait for.
    let ended = unsafe { libc::wait4(child.id() as libc::pid_t, &mut status, 0, usage.as_mut_ptr()) };
    assert!(ended > 0 && libc::WIFEXITED(status), "{status:x}");
    // SAFETY: filled in, as the call has not failed.
    unsafe { usage.assume_init() }.ru_maxrss
}

/// Somebody cuts and lengthens a spool all the time while others look at it: they may recover less, and get no signal.
#[test]
fn cut_meanwhile() {
    let mut random = Random::new("cut_meanwhile");
    let template = Template::new(&mut random);
    let place = SpoolDir::new("cut");
    let path = place.0.join(format!("{}-1.spool", template.prefix));
    let over = AtomicBool::new(false);
    let length = template.bytes.len() as u64;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // Whoever recovers it removes it.
                let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
                let file = file.expect("spool");
                file.write_all_at(&template.bytes, 0).expect("spool");
                for _ in 0..20 {
                    file.set_len(random.pick(&[0, 4096, length / 2, length - 4096])).expect("cut");
                    file.set_len(length).expect("lengthen");
                    file.write_all_at(&template.bytes[..8192], 0).expect("header");
                }
            }
        });
        for _ in 0..rounds(20) {
            let recover = |_| {
                let mut command = recover_command(&place.0, &[]);
                command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("recover")
            };
            let recoveries: Vec<_> = (0..4).map(recover).collect();
            for mut recovery in recoveries {
                let status = recovery.wait().expect("recover");
                over.fetch_or(status.signal().is_some(), Ordering::Relaxed);
                assert_eq!(status.signal(), None, "ended by a signal");
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}
