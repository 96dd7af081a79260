//! `jitsym inject`. The input is the length of a recording (4 bytes), the recording, and a jitdump.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use jitsym_tool::inject::{inject, Given, Options};
use libfuzzer_sys::fuzz_target;

/// The most bytes of the new recording and its objects, besides those that depend on the input: the limits of `inject`.
const MORE: u64 = 256 << 20;
const TIMES: u64 = 1100;

/// A directory of this process in memory, which is removed when the process ends.
fn dir() -> &'static PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        // The target `c_api` removes directories with other names.
        let dir = PathBuf::from(format!("/dev/shm/jitsym-inject-fuzz-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("directory");
        // SAFETY: the function may run when the process exits.
        unsafe { libc::atexit(remove_dir) };
        dir
    })
}

extern "C" fn remove_dir() {
    let _ = fs::remove_dir_all(dir());
}

/// The number of bytes that a file takes.
fn size(path: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::symlink_metadata(path).expect("file").blocks() * 512
}

fuzz_target!(|data: &[u8]| {
    let Some((len, rest)) = data.split_first_chunk() else { return };
    let (recording, dump) = rest.split_at((u32::from_le_bytes(*len) as usize).min(rest.len()));
    let dir = dir();
    let (input, dumped, inside) = (dir.join("perf.data"), dir.join("jit.dump"), dir.join("inside"));
    fs::write(&input, recording).expect("recording");
    fs::write(&dumped, dump).expect("jitdump");
    fs::create_dir(&inside).expect("directory");
    let given = Given { dumps: vec![(None, dumped.clone())], search: vec![dir.join("nothing")] };
    let options = Options { input: input.clone(), output: inside.join("jit.data"), given, ..Options::default() };
    let result = inject(&options, &mut |_, _| Ok(()));
    let names = |dir: &PathBuf| -> Vec<PathBuf> {
        fs::read_dir(dir).expect("directory").map(|entry| entry.expect("entry").path()).collect()
    };
    let mut written = 0;
    for path in names(&inside) {
        let name = path.file_name().and_then(|name| name.to_str()).expect("name");
        assert!(result.is_ok() && ["jit.data", "jit.data.objects"].contains(&name), "{name}");
        let files = if path.is_dir() { names(&path) } else { vec![path] };
        written += files.iter().map(|file| size(file)).sum::<u64>();
    }
    assert!(written <= MORE + TIMES * data.len() as u64, "{written} bytes");
    assert_eq!(names(dir).len(), 3);
    assert!(fs::read(&input).expect("recording") == recording && fs::read(&dumped).expect("jitdump") == dump);
    fs::remove_dir_all(inside).expect("remove");
});
