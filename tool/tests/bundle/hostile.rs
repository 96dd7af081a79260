//! Bundles that somebody has made to do harm, and damaged ones: a message names the cause, and nothing is written elsewhere.

use std::fs;
use std::io::Write;
use std::path::Path;

use flate2::write::GzEncoder;
use flate2::Compression;
use tar::{Builder, EntryType, Header};

use crate::support::{fresh_dir, run, serial, try_run};
use crate::{jitsym, perf, said};

/// An entry of an archive: path, kind, size, contents.
type Entry<'a> = (&'a str, EntryType, u64, &'a [u8]);

fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut gz = GzEncoder::new(Vec::new(), Compression::fast());
    gz.write_all(bytes).expect("memory");
    gz.finish().expect("memory")
}

fn archive(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut tar = Builder::new(Vec::new());
    for (path, kind, size, contents) in entries {
        let mut header = Header::new_gnu();
        // As it is: the crate refuses such paths.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(*kind);
        header.set_size(*size);
        header.set_mode(0o644);
        if !kind.is_file() {
            header.set_link_name("/etc/passwd").expect("link");
        }
        header.set_cksum();
        tar.append(&header, *contents).expect("memory");
    }
    compressed(&tar.into_inner().expect("memory"))
}

#[test]
fn bundles_that_do_harm() {
    let dir = fresh_dir("hostile");
    let (temporary, bundle) = (fresh_dir("hostile-temporary"), dir.join("b.tar.gz"));
    let refused = |bytes: &[u8], cause: &str, what: &str| {
        fs::write(&bundle, bytes).expect("write");
        for command in ["report", "top", "flamegraph"] {
            let output = try_run(jitsym(&[command]).arg(&bundle).env("TMPDIR", &temporary).current_dir(&temporary));
            assert_eq!(output.status.code(), Some(2), "{what}: {output:?}");
            let text = said(&output);
            assert!(text.contains(cause) && text.lines().count() == 1, "{what}: {text}");
            assert_eq!(fs::read_dir(&temporary).expect("directory").count(), 0, "{what}");
        }
    };
    let file = EntryType::Regular;
    let first = ("jitsym-bundle/README", file, 0, &b""[..]);
    let outside = "a file outside of its directory";
    for path in ["../x", "/tmp/hostile-x", "jitsym-bundle/../../x", "jitsym-bundle", "other/x"] {
        refused(&archive(&[first, (path, file, 1, b"x")]), outside, path);
    }
    for kind in [EntryType::Symlink, EntryType::Link, EntryType::Fifo, EntryType::Char, EntryType::Directory] {
        refused(&archive(&[first, ("jitsym-bundle/x", kind, 0, b"")]), "a link or another entry", &format!("{kind:?}"));
    }
    for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader, EntryType::GNUSparse] {
        let entry = ("jitsym-bundle/x", kind, 1 << 40, &b""[..]);
        refused(&archive(&[first, entry]), "a link or another entry", &format!("{kind:?}"));
    }
    refused(&archive(&[first, ("jitsym-bundle/x", file, 5 << 30, b"")]), "more than 100000 files or 4 GiB", "large");
    refused(&archive(&[("x", file, 1, b"x")]), "is no bundle", "another archive");
    refused(&archive(&[first]), "it has no recording", "no recording");
    refused(&compressed(b"text"), "is damaged", "no archive");
    refused(b"\x1f\x8b no gzip", "is damaged", "no gzip");
    let twice = ("jitsym-bundle/x", file, 1, &b"x"[..]);
    refused(&archive(&[first, twice, twice]), "File exists", "twice");
    refused(&archive(&[first, twice, ("jitsym-bundle/x/y", file, 1, b"x")]), "", "a file as a directory");
    assert_eq!(fs::read_dir(&dir).expect("directory").count(), 1);
    assert!(!Path::new("/tmp/hostile-x").exists());
}

/// Every cut of a bundle, and a changed byte in each part of it.
#[test]
fn damaged_bundles() {
    let dir = fresh_dir("damaged");
    let (temporary, data) = (fresh_dir("damaged-temporary"), dir.join("perf.data"));
    {
        let _alone = serial();
        let mut record = perf::perf("record");
        run(record.args(["-q", "-e", "cpu-clock", "-g", "-o"]).arg(&data).args(["--", "true"]));
    }
    let bundle = dir.join("b.tar.gz");
    run(jitsym(&["bundle"]).arg(&data).arg("-o").arg(&bundle));
    let whole = fs::read(&bundle).expect("bundle");
    let top = |bytes: &[u8]| {
        fs::write(&bundle, bytes).expect("write");
        let output = try_run(jitsym(&["top"]).arg(&bundle).env("TMPDIR", &temporary));
        assert_eq!(fs::read_dir(&temporary).expect("directory").count(), 0);
        output
    };
    let right = top(&whole);
    assert!(right.status.success(), "{right:?}");
    for part in 0..16 {
        let at = (whole.len() - 1) * part / 15;
        let output = top(&whole[..at]);
        assert_eq!(output.status.code(), Some(2), "{at}: {output:?}");
        let mut changed = whole.clone();
        changed[at] ^= 0x10;
        let output = top(&changed);
        // A changed byte may mean nothing: in the header of gzip, or as the distance to one of several equal bytes.
        assert!(output.status.code() == Some(2) || output.stdout == right.stdout, "{at}: {output:?}");
    }
}
