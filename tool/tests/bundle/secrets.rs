//! Copies of stacks, registers and command lines are in recordings, and in no bundle.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::support::{compile, fresh_dir, run, serial, stdout, Link};
use crate::{bundled, jitsym, of_bundle, perf, script, unpacked};

/// As the program makes them.
const ON_STACK: &[u8] = b"OL-THE-STACK";
const IN_REGISTER: &[u8] = b"REGISTER";
const ARGUMENT: &[u8] = b"--password=OF-THE-COMMAND";

fn program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compile("gcc", &["tool/tests/bundle/secret.c"], Link::None, &["-std=gnu99", "-O1"], "secret"))
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

/// The contents of all files below a directory, and their paths.
fn all_bytes(dir: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).expect("directory") {
        let path = entry.expect("entry").path();
        all.extend(path.as_os_str().as_encoded_bytes());
        all.extend(if path.is_dir() { all_bytes(&path) } else { fs::read(&path).expect("file") });
    }
    all
}

fn header(data: &Path) -> String {
    stdout(&run(perf::perf("report").args(["--header-only", "-i"]).arg(data)))
}

#[test]
fn no_secret_is_in_a_bundle() {
    let kinds: [(&str, &[&str]); 4] = [
        ("plain", &["-e", "cpu-clock", "--call-graph", "dwarf"]),
        // Registers at the time of the interrupt, several events, and counters in samples.
        ("registers", &["-e", "{cpu-clock,page-faults}:S", "--intr-regs=R12", "--call-graph", "dwarf"]),
        ("compressed", &["-e", "cpu-clock", "-z", "--call-graph", "dwarf"]),
        // Stacks are copied for one event only.
        ("different", &["-e", "cpu-clock/call-graph=dwarf/,task-clock/call-graph=no/"]),
    ];
    for (kind, options) in kinds {
        let data = fresh_dir(format!("secret-{kind}")).join("perf.data");
        {
            let _alone = serial();
            let mut record = perf::perf("record");
            record.args(["-q", "-k", "1", "-F", "999"]).args(options).arg("-o").arg(&data).arg("--").arg(program());
            run(record.arg("500000000").arg(std::str::from_utf8(ARGUMENT).expect("text")));
        }
        // The same recording, not compressed.
        let plain = data.with_file_name("plain.data");
        run(jitsym(&["inject", "-i"]).arg(&data).arg("-o").arg(&plain));
        let bytes = fs::read(&plain).expect("recording");
        for secret in [ON_STACK, IN_REGISTER, ARGUMENT] {
            assert!(contains(&bytes, secret), "{kind}: the control {:?}", String::from_utf8_lossy(secret));
        }
        let before = header(&data);
        assert!(before.contains("# cmdline :") && before.contains("# hostname :"), "{before}");

        let (bundle, _) = bundled(&data, &[]);
        let dir = unpacked(&bundle);
        let bytes = all_bytes(&dir);
        for secret in [ON_STACK, IN_REGISTER, ARGUMENT] {
            assert!(!contains(&bytes, secret), "{kind}: {:?}", String::from_utf8_lossy(secret));
        }
        let after = header(&dir.join("perf.data"));
        assert!(!after.contains("# cmdline :") && !after.contains("# hostname :"), "{after}");
        assert!(after.contains("# cpudesc :") && after.contains("# perf version :"), "{after}");
        // The stacks are there nevertheless.
        let text = script(perf::perf("script"), &of_bundle(&dir), "event,ip,sym");
        let stacks = text.split("\n\n").filter(|block| block.contains(" burn\n") && block.contains(" main\n")).count();
        assert!(stacks > 50, "{kind}: {stacks} stacks in {text}");
    }
}
