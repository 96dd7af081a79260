//! Detects properties of other producers that hide their code from readers of perf maps.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use jitsym::format::file_names::FileKind;

use super::{Rank, Report};
use crate::check::{self, rules, Finding};
use crate::open;
use crate::record::quoted;

/// Executable memory for which no reader uses a perf map.
#[derive(Clone, Debug, Default)]
pub struct Hidden {
    /// The name of memory that was named by prctl(PR_SET_VMA_ANON_NAME): `[anon:NAME]`.
    named: Option<String>,
    /// A file without a path: `/memfd:NAME`.
    file: Option<String>,
}

impl Hidden {
    pub fn add(&mut self, path: &str) {
        let place = match path {
            _ if path.starts_with("[anon:") => &mut self.named,
            _ if path.starts_with("/memfd:") => &mut self.file,
            _ => return,
        };
        place.get_or_insert_with(|| path.trim_end_matches(" (deleted)").to_owned());
    }

    /// The reason why no map is used for this memory, and a remedy.
    fn why(&self) -> Option<(String, &'static str)> {
        if let Some(path) = &self.file {
            return Some(match path.contains("doublemapper") {
                true => (
                    format!("the code of .NET is in {path}, for which no reader looks into a perf map: DOTNET_EnableWriteXorExecute=0 makes plain memory of it"),
                    "DOTNET_EnableWriteXorExecute=0 jitsym record -- COMMAND",
                ),
                false => (
                    format!("the code is in {path}, for which no reader looks into a perf map: a jitdump or regions name it"),
                    "JITSYM=on jitsym record -- COMMAND",
                ),
            });
        }
        let path = self.named.as_ref()?;
        Some((
            format!(
                "the memory of the code has a name ({path}, by prctl), and so no reader looks into a perf map for it: a jitdump or \
                 regions name the code, or memory without a name"
            ),
            "JITSYM=on jitsym record -- COMMAND",
        ))
    }

    /// Adds the reason as a note, if a map may be the only source of names.
    pub fn note(&self, report: &mut Report) {
        self.why().into_iter().for_each(|(text, _)| report.note(text));
    }

    /// Adds the reason as a cause, if no other source names the code. Returns whether there is a reason.
    pub fn tell(&self, report: &mut Report) -> bool {
        self.why().map(|(text, next)| report.because(Rank::Nothing, text, next)).is_some()
    }
}

/// The maximum number of bytes of a map that are examined for its dialect.
const MOST: u64 = 1 << 20;

/// The possible paths of the perf map of a process.
fn map_of(pid: u32, proc: &Path) -> [PathBuf; 2] {
    let name = format!("tmp/{}", FileKind::PerfMap.name(pid));
    [Path::new("/").join(&name), proc.join(format!("{pid}/root")).join(name)]
}

/// The first `most` bytes of the perf map of a process, and the path of the map.
pub fn map_text(pid: u32, proc: &Path, most: u64) -> Option<(Vec<u8>, PathBuf)> {
    let read = |path: PathBuf| {
        let mut bytes = Vec::new();
        open::of_process(&path, pid).ok()?.take(most).read_to_end(&mut bytes).ok()?;
        Some((bytes, path))
    };
    map_of(pid, proc).into_iter().find_map(read)
}

/// Reports lines in the map of a process that some readers reject.
pub fn dialect(pid: u32, proc: &Path, report: &mut Report) {
    let Some((bytes, path)) = map_text(pid, proc, MOST) else { return };
    let mut findings: Vec<Finding> = Vec::new();
    let facts = check::Facts { path: Some(path.clone()), copied: true, ..check::Facts::default() };
    check::check(&bytes, &facts, &mut findings);
    if findings.iter().any(|finding| *finding.rule == rules::MAP_0X) {
        report.note(format!(
            "{} has addresses with 0x: perf reads them; ddprof and blazesym refuse the lines (`jitsym check {}`)",
            path.display(),
            quoted(&path)
        ));
    }
}

/// Reports perforator's restriction. perforator reads only the maps of processes that request this by a variable.
pub fn perforator(has_variable: bool, proc: &Path, report: &mut Report) {
    let processes = || fs::read_dir(proc).into_iter().flatten().flatten();
    let is_one = |entry: fs::DirEntry| {
        fs::read_to_string(entry.path().join("comm")).is_ok_and(|comm| comm.starts_with("perforator"))
    };
    if !has_variable && processes().any(is_one) {
        report.note("perforator runs here, and reads the perf map of a process only with __PERFORATOR_ENABLE_PERFMAP=1 in its environment");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_hidden() {
        let of = |paths: &[&str]| {
            let mut hidden = Hidden::default();
            paths.iter().for_each(|path| hidden.add(path));
            hidden.why()
        };
        assert_eq!(of(&["//anon", "/usr/lib/libc.so.6"]), None);
        let named = of(&["[anon:cpython:jit]"]).unwrap();
        assert!(named.0.contains("[anon:cpython:jit], by prctl"), "{named:?}");
        let net = of(&["[anon:x]", "/memfd:doublemapper (deleted)"]).unwrap();
        assert!(
            net.0.contains("in /memfd:doublemapper,") && net.1.starts_with("DOTNET_EnableWriteXorExecute=0 "),
            "{net:?}"
        );
        assert!(of(&["/memfd:jit (deleted)"]).unwrap().0.contains("/memfd:jit,"));
    }
}
