//! Reads the samples of any recording of perf. If the recording lacks the objects of its jitdumps, they are injected into a
//! private copy. A bundle is unpacked into a private directory.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::contents::{self, Contents};
use super::perf::Perf;
use super::script::{self, Sample};
use super::{children, dumps, is_recording, quoted, unfinished, Step};
use crate::bundle::{archive, KALLSYMS, RECORDING, SOURCES, SYMBOLS};
use crate::inject;
use crate::open;
use crate::private::PrivateDir;
use crate::text::Shown;

/// Checks whether the file is a recording or a bundle. For other files, the error describes what the user can do with the
/// file.
pub fn check(data: &Path) -> Result<(), String> {
    let start = start_of(data)?;
    if !is_recording(&start) && !start.starts_with(archive::GZIP) {
        return Err(format!(
            "{}: no recording of perf; if it is a jitdump, a perf map or a region, look at it by\n    jitsym check {}",
            data.shown(),
            quoted(data)
        ));
    }
    Ok(())
}

fn start_of(data: &Path) -> Result<Vec<u8>, String> {
    let mut start = Vec::new();
    let read = open::named(data).and_then(|file| file.take(16).read_to_end(&mut start));
    read.map_err(|error| format!("{}: {error}", data.shown())).map(|_| start)
}

/// A recording that can be read. A private copy and its objects are removed with this value.
pub struct View<'a> {
    perf: &'a Perf,
    data: PathBuf,
    /// The directory of the unpacked bundle.
    unpacked: Option<PathBuf>,
    _private: Option<PrivateDir>,
}

impl<'a> View<'a> {
    /// Opens a recording, and injects its jitdumps into a private copy if they are not in the recording.
    pub fn open(perf: &'a Perf, data: &Path, tell: &mut dyn FnMut(Step<'_>)) -> Result<View<'a>, String> {
        check(data)?;
        if let Some(writer) = unfinished(data) {
            return Err(format!("{}: {writer} has not finished this file: was it killed?", data.shown()));
        }
        children::catch_signals();
        if start_of(data)?.starts_with(archive::GZIP) {
            return View::unpack(perf, data);
        }
        let contents = Contents::read(perf, data)?;
        let mut view = View { perf, data: data.to_owned(), unpacked: None, _private: None };
        if contents.injector().is_some() || contents.dumps().next().is_none() {
            return Ok(view);
        }
        let work = private()?;
        let out = work.path().join("perf.data");
        let options = inject::Options { input: data.to_owned(), output: out.clone(), ..Default::default() };
        if dumps::put_in(&options, &contents, tell) {
            view.data = out;
            view._private = Some(work);
        }
        stopped().map_or(Ok(view), Err)
    }

    fn unpack(perf: &'a Perf, bundle: &Path) -> Result<View<'a>, String> {
        let about = |error| format!("{}: {error}", bundle.shown());
        let work = private()?;
        let top = archive::unpack(&open::named(bundle).map_err(about)?, work.path()).map_err(about)?;
        // A bundle without such files does not contain these directories.
        for dir in [SYMBOLS, SOURCES] {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(top.join(dir)).map_err(about)?;
        }
        let view = View { perf, data: top.join(RECORDING), unpacked: Some(top), _private: Some(work) };
        stopped().map_or(Ok(view), Err)
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    pub fn is_bundle(&self) -> bool {
        self.unpacked.is_some()
    }

    /// The directory of a bundle's source files.
    pub fn sources(&self) -> Option<PathBuf> {
        self.unpacked.as_ref().map(|top| top.join(SOURCES))
    }

    /// Arguments with which perf reads the recording. perf then searches for no file of a bundle on this machine.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments = vec!["-i".into(), self.data.clone().into()];
        if let Some(top) = &self.unpacked {
            arguments.extend(["--symfs".into(), top.join(SYMBOLS).into()]);
            arguments.extend(["--kallsyms".into(), top.join(KALLSYMS).into()]);
        }
        arguments
    }

    /// Passes each sample to `each`.
    pub fn samples(&self, each: &mut dyn FnMut(&Sample)) -> Result<(), String> {
        let mut command = self.perf.command("script");
        command.args(self.arguments()).args(["--no-inline", "--ns", "-F", script::FIELDS]);
        let read = contents::with_output(self.perf, &mut command, |output| script::samples(output, each));
        stopped().map_or(read, Err)
    }
}

fn private() -> Result<PrivateDir, String> {
    let dir = std::env::temp_dir();
    PrivateDir::new(&dir, "jitsym-view-").map_err(|error| format!("{}: {error}", dir.shown()))
}

/// The message if a signal has stopped perf.
fn stopped() -> Option<String> {
    children::asked().map(|signal| format!("stopped by signal {signal}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_recording() {
        for path in ["/etc/passwd", "/nowhere", "/dev/null", "/etc"] {
            assert!(check(Path::new(path)).is_err_and(|error| error.starts_with(path)), "{path}");
        }
    }
}
