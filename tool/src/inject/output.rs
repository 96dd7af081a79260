//! Writes the new recording and its objects to their directories. Nothing is visible under its final name before it is
//! complete.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jitsym::sys::process;

use super::Options;
use crate::objects::OutDir;
use crate::private::PrivateDir;
use crate::record::plan::beside;

/// The end of the name of the directory of objects, after the name of the recording.
const OBJECTS: &str = ".objects";

/// The default name of the output: `jit.data`, or `NAME.jit.data` for `NAME.data`.
pub fn usual(input: &Path) -> PathBuf {
    match input.file_name() {
        Some(name) if name == "perf.data" => input.with_file_name("jit.data"),
        _ if input.extension().is_some_and(|end| end == "data") => input.with_extension("jit.data"),
        _ => beside(input, ".jit.data"),
    }
}

fn refuse<T>(why: &str) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

/// The metadata of the file at a path. A link is not followed.
fn look(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// A recording that is being written.
pub struct Output {
    path: PathBuf,
    work: PrivateDir,
    pub file: File,
    /// The directory into which the objects are written.
    pub dir: OutDir,
    /// The final directory of the objects.
    objects: PathBuf,
    /// Whether the final directory of the objects exists.
    is_there: bool,
    /// Whether the objects are still in the private directory.
    is_apart: bool,
}

/// An error, and the path that it is about.
pub type Failure = (PathBuf, io::Error);

impl Output {
    /// Checks the paths of the recording and of the objects, and makes the files. `input` is the recording that is read.
    pub fn new(options: &Options, input: &Metadata) -> Result<Output, Failure> {
        let (path, objects) = (&*options.output, options.objects.as_deref());
        let about = |path: &Path| {
            let path = path.to_owned();
            move |error| (path, error)
        };
        check(path, input, options.replaces).map_err(about(path))?;
        let parent = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let parent = fs::canonicalize(parent).map_err(about(path))?;
        let Some(name) = path.file_name() else { return refuse("is a directory").map_err(about(path)) };
        let path = parent.join(name);
        let objects = match objects {
            Some(dir) => std::path::absolute(dir).map_err(about(dir))?,
            None => beside(&path, OBJECTS),
        };
        let is_there = check_dir(&objects).map_err(about(&objects))?;
        let work = PrivateDir::beside(&path).map_err(about(&path))?;
        let inside = work.path().join("recording");
        let create = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(inside);
        let file = create.map_err(about(&path))?;
        // A directory with another parent may be on another file system.
        let is_apart = objects.parent() == Some(&parent);
        let place = if is_apart { work.path().join("objects") } else { objects.clone() };
        let dir = OutDir::own(&place).map_err(about(&objects))?;
        let objects = if is_apart { objects } else { dir.path().to_owned() };
        Ok(Output { path, work, file, dir, objects, is_there, is_apart })
    }

    /// The path of an object after [`Output::finish`].
    pub fn object(&self, made: &Path) -> PathBuf {
        made.file_name().map_or_else(|| self.objects.clone(), |name| self.objects.join(name))
    }

    /// Moves the recording and its objects to their final paths. Returns the path of the directory of the objects, if there
    /// are any.
    pub fn finish(self, has_objects: bool) -> Result<Option<PathBuf>, Failure> {
        let is_moved = self.is_apart && has_objects;
        if is_moved {
            self.move_objects().map_err(|error| (self.objects.clone(), error))?;
        }
        if let Err(error) = fs::rename(self.work.path().join("recording"), &self.path) {
            if is_moved && !self.is_there {
                let _ = fs::remove_dir_all(&self.objects);
            }
            return Err((self.path.clone(), error));
        }
        Ok(has_objects.then(|| self.objects.clone()))
    }

    /// Moves the objects. An existing object stays, because other recordings may refer to it. An object with the same name
    /// has the same contents.
    fn move_objects(&self) -> io::Result<()> {
        if !self.is_there {
            return fs::rename(self.dir.path(), &self.objects);
        }
        OutDir::own(&self.objects)?.take_all(&self.dir)
    }
}

/// Checks that a recording may be written to a path. The path must not exist, or must be a file of this user that is not the
/// input. If `replaces` is true, it may also be the input.
fn check(path: &Path, input: &Metadata, replaces: bool) -> io::Result<()> {
    let Some(data) = look(path)? else { return Ok(()) };
    if data.is_symlink() {
        return refuse("is a symbolic link, and nothing is written through links");
    }
    if !data.is_file() {
        return refuse("is there already, and is not a file");
    }
    if !replaces && (data.dev(), data.ino()) == (input.dev(), input.ino()) {
        return refuse("is the recording that is read: choose another name with -o");
    }
    if data.uid() != process::user() {
        return refuse("is a file of another user");
    }
    Ok(())
}

/// Whether the directory exists. Fails if other users could change its contents.
fn check_dir(path: &Path) -> io::Result<bool> {
    let Some(data) = look(path)? else { return Ok(false) };
    if !data.is_dir() {
        return refuse("is not a directory: choose another one with --objects");
    }
    if data.uid() != process::user() || data.mode() & 0o022 != 0 {
        return refuse("can be changed by other users: choose another directory with --objects");
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn names() {
        for (input, output) in
            [("d/perf.data", "d/jit.data"), ("run.data", "run.jit.data"), ("x/run", "x/run.jit.data")]
        {
            assert_eq!(usual(Path::new(input)), Path::new(output));
        }
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let base = PrivateDir::new(&std::env::temp_dir(), "jitsym-output-").unwrap();
        let (input, out) = (base.path().join("perf.data"), base.path().join("jit.data"));
        fs::write(&input, "x").unwrap();
        let data = fs::metadata(&input).unwrap();
        let options = Options { output: out.clone(), ..Options::default() };
        let new = || Output::new(&options, &data).map(drop).map_err(|(path, error)| (path, error.to_string()));
        symlink(&input, &out).unwrap();
        assert!(new().is_err_and(|(path, error)| path == out && error.contains("link")));
        fs::remove_file(&out).unwrap();
        fs::hard_link(&input, &out).unwrap();
        assert!(new().is_err_and(|(_, error)| error.contains("that is read")));
        assert!(Output::new(&Options { replaces: true, ..options.clone() }, &data).is_ok());
        fs::remove_file(&out).unwrap();
        let objects = base.path().join("jit.data.objects");
        symlink(base.path(), &objects).unwrap();
        assert!(new().is_err_and(|(path, error)| path == objects && error.contains("not a directory")));
        fs::remove_file(&objects).unwrap();
        assert!(new().is_ok());
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 1, "nothing stays of an output that was not finished");
        let output = Output::new(&options, &data).unwrap();
        fs::write(output.dir.path().join("a.so"), "a").unwrap();
        assert_eq!(output.object(Path::new("/elsewhere/a.so")), objects.join("a.so"));
        assert_eq!(output.finish(true).unwrap(), Some(objects.clone()));
        assert!(objects.join("a.so").is_file() && out.is_file());
        let output = Output::new(&options, &data).unwrap();
        fs::write(output.dir.path().join("b.so"), "b").unwrap();
        assert!(!objects.join("b.so").exists(), "it is not complete");
        output.finish(true).unwrap();
        assert!(objects.join("a.so").is_file() && objects.join("b.so").is_file(), "the directory is used again");
    }
}
