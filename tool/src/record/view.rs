//! Reads the samples of any recording of perf. A recording without the objects of its jitdumps gets them in a private copy.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::contents::{self, Contents};
use super::perf::Perf;
use super::script::{self, Sample};
use super::{children, dumps, is_recording, quoted, unfinished, Step};
use crate::inject;
use crate::open;
use crate::private::PrivateDir;
use crate::text::Shown;

/// Whether the file is a recording. If the file is none, the error says what to do with it.
pub fn check(data: &Path) -> Result<(), String> {
    let mut start = Vec::new();
    let read = open::named(data).and_then(|file| file.take(16).read_to_end(&mut start));
    read.map_err(|error| format!("{}: {error}", data.shown()))?;
    if !is_recording(&start) {
        return Err(format!(
            "{}: no recording of perf; if it is a jitdump, a perf map or a region, look at it by\n    jitsym check {}",
            data.shown(),
            quoted(data)
        ));
    }
    Ok(())
}

/// A recording that can be read. A private copy and its objects are removed with this value.
pub struct View<'a> {
    perf: &'a Perf,
    data: PathBuf,
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
        let contents = Contents::read(perf, data)?;
        let mut view = View { perf, data: data.to_owned(), _private: None };
        if contents.injector().is_some() || contents.dumps().next().is_none() {
            return Ok(view);
        }
        let dir = std::env::temp_dir();
        let work = PrivateDir::new(&dir, "jitsym-view-").map_err(|error| format!("{}: {error}", dir.shown()))?;
        let out = work.path().join("perf.data");
        let options = inject::Options { input: data.to_owned(), output: out.clone(), ..Default::default() };
        if dumps::put_in(&options, &contents, tell) {
            view.data = out;
            view._private = Some(work);
        }
        stopped().map_or(Ok(view), Err)
    }

    /// Passes each sample to `each`.
    pub fn samples(&self, each: &mut dyn FnMut(&Sample)) -> Result<(), String> {
        let mut command = self.perf.command("script");
        command.arg("-i").arg(&self.data).args(["--no-inline", "--ns", "-F", script::FIELDS]);
        let read = contents::with_output(self.perf, &mut command, |output| script::samples(output, each));
        stopped().map_or(read, Err)
    }
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
