//! What other users may put where `jitsym` looks, and what they may write into it.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::{fresh_dir, run, run_to_its_end};

fn jitsym(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_jitsym"));
    command.args(words);
    command
}

/// All that was printed.
fn printed(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8(text.clone()).expect("UTF-8")).concat()
}

/// What a terminal would do something with.
fn acts_on_a_terminal(text: &str) -> bool {
    text.chars().any(|c| c.is_control() && c != '\n' && c != '\t' || ('\u{202a}'..='\u{202e}').contains(&c))
}

/// A process that only waits, and the files in /tmp that are called as its own.
struct Waiting(std::process::Child, Vec<PathBuf>);

impl Waiting {
    fn new() -> Waiting {
        Waiting(Command::new("sleep").arg("600").spawn().expect("start"), Vec::new())
    }

    fn file(&mut self, name: &str) -> &Path {
        self.1.push(PathBuf::from("/tmp").join(name.replace("PID", &self.0.id().to_string())));
        &self.1[self.1.len() - 1]
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        self.1.iter().for_each(|path| _ = std::fs::remove_file(path));
    }
}

/// A number stands for the files of a process, and not for what a link with such a name leads to.
#[test]
fn links_with_names_of_a_process() {
    let secret = fresh_dir("links").join("secret");
    std::fs::write(&secret, "1000 8 secret_of_root\n").expect("write");
    for kind in ["symbolic link", "second name", "not a file"] {
        let mut process = Waiting::new();
        let map = process.file("perf-PID.map");
        match kind {
            "symbolic link" => symlink(&secret, map).expect("link"),
            "second name" => {
                // Below the same file system as the name.
                std::fs::write("/tmp/secret", "1000 8 secret_of_root\n").expect("write");
                std::fs::hard_link("/tmp/secret", map).expect("link");
            }
            _ => drop(run(Command::new("mkfifo").arg(map))),
        }
        process.1.push("/tmp/secret".into());
        let dump = process.file("jit-0PID.dump").to_owned();
        std::fs::write(&dump, crate::build::plain()).expect("write");
        let pid = process.0.id().to_string();
        for command in ["dump", "check", "stat"] {
            let output = run_to_its_end(&mut jitsym(&[command, &pid]));
            let text = printed(&output);
            assert!(!text.contains("secret_of_root"), "{command}, {kind}: {text}");
            assert!(text.contains(&format!("perf-{pid}.map: ")) && text.contains(kind), "{command}, {kind}: {text}");
            assert!(output.status.code() == Some(2) && text.contains("jitdump"), "the other file: {text}");
        }
    }
}

/// What has no end is given up before there is no memory left.
#[test]
fn what_never_ends() {
    let dir = fresh_dir("endless");
    // Frames of zstd with blocks of one byte each that stands for 128 KiB: 400 MB of 13 KB.
    let mut bomb = b"\x28\xb5\x2f\xfd\x00\x50".to_vec();
    for _ in 0..3200 {
        // A block that is not the last one, of the kind RLE, and its length.
        bomb.extend((((128u32 << 10) << 3) | 2).to_le_bytes()[..3].iter().chain(b"x"));
    }
    let bomb_at = dir.join("bomb.zst");
    std::fs::write(&bomb_at, bomb).expect("write");
    let sparse = dir.join("jit-7.dump");
    std::fs::File::create(&sparse).and_then(|file| file.set_len(1 << 43)).expect("a file with a hole");
    for (what, script) in [
        ("standard input", "\"$0\" stat - </dev/zero".to_owned()),
        ("a pipe", "cat /dev/zero | \"$0\" stat /dev/stdin".to_owned()),
        ("zstd", format!("\"$0\" stat '{}'", bomb_at.display())),
        ("a hole", format!("\"$0\" stat '{}'", sparse.display())),
    ] {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("ulimit -v 60000; {script}"), env!("CARGO_BIN_EXE_jitsym")]);
        let output = run_to_its_end(&mut shell);
        let text = printed(&output);
        assert!(output.status.code() == Some(2) && text.contains("there is no memory for that"), "{what}: {text}");
    }
}

/// Paths, names and words of a file are printed as text, wherever they come from.
#[test]
fn nothing_acts_on_a_terminal() {
    const BAD: &str = "\x1b]0;title\x07\x1b[2J\u{202e}gpj\u{9b}31m";
    let dir = fresh_dir("terminal");
    let path = |name: &str| dir.join(format!("{name}{BAD}"));
    let write = |name: &str, text: &str| {
        std::fs::write(path(name), text).expect("write");
        path(name)
    };
    let map = write("perf-7.map", &format!("1000 8 a{BAD}\nno line {BAD}\n"));
    let events = format!("# callgrind format\npid: 7\npositions: instr line\nevents: Ir{BAD}\n\nob=???\nfl=???\nfn=0x1000{BAD}\n0x1000 0 5\n\nfn=0x1000\n0x1000 0 5\n");
    let recording = write("callgrind.out.7", &events);
    let missing = path("missing");
    let map_words = [map.as_os_str(), missing.as_os_str(), dir.as_os_str()];
    let mut commands = vec![
        jitsym(&["record", "--perf", missing.to_str().expect("UTF-8"), "--", "true"]),
        jitsym(&["record", "--", missing.to_str().expect("UTF-8")]),
        jitsym(&["doctor", missing.to_str().expect("UTF-8")]),
        jitsym(&["doctor", map.to_str().expect("UTF-8")]),
        jitsym(&["recover", "99999999", "--dir", missing.to_str().expect("UTF-8")]),
        jitsym(&["clean", "--dir", missing.to_str().expect("UTF-8")]),
        jitsym(&["dump", "--name", BAD, map.to_str().expect("UTF-8")]),
        jitsym(&["callgrind", "--map", map.to_str().expect("UTF-8"), recording.to_str().expect("UTF-8")]),
        jitsym(&[BAD]),
    ];
    for command in [&["check"][..], &["check", "--json"], &["check", "--all"], &["stat", "--top", "9"]] {
        let mut jitsym = jitsym(command);
        jitsym.args(map_words).env("CLICOLOR_FORCE", "0");
        commands.push(jitsym);
    }
    for command in &mut commands {
        let output = run_to_its_end(command.stdin(Stdio::null()));
        let text = printed(&output);
        assert!(!text.is_empty() && !acts_on_a_terminal(&text), "{command:?}: {text:?}");
    }
    // What a process has mapped.
    let region = write("jit-7-0.so", "x");
    let mut process = Command::new("python3");
    process.args(["-c", "import mmap, sys\nfile = open(sys.argv[1], 'rb')\nit = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\nprint(flush=True)\nsys.stdin.read()"]);
    let named = path("named").join("jit-7-0.so");
    std::fs::create_dir(path("named")).expect("directory");
    std::fs::rename(region, &named).expect("rename");
    let mut process = process.arg(&named).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start");
    BufReader::new(process.stdout.take().expect("output")).read_line(&mut String::new()).expect("line");
    let pid = process.id().to_string();
    for command in ["doctor", "check", "dump"] {
        let text = printed(&run_to_its_end(&mut jitsym(&[command, &pid])));
        assert!(text.contains("jit-") && !acts_on_a_terminal(&text), "{command}: {text:?}");
    }
    drop(process.stdin.take());
    process.wait().expect("end");
}
