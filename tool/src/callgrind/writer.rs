//! Writes a callgrind file. Each function is written with its object and file, even if the previous function has the same
//! object and file. Names, positions and calls are abbreviated as in callgrind's own files.

use std::collections::HashMap;
use std::hash::Hash;
use std::io::{self, Write};

use super::reader::{At, Columns, Function, Place};
use super::text::{Text, Texts};

/// Positions closer together than this are written as a difference.
const NEAR: u64 = 100;

/// The numbers of names, with the part in which each name was last written in full. KCachegrind may drop names between parts.
struct Numbers<K>(HashMap<K, (usize, u64)>);

impl<K: Hash + Eq> Numbers<K> {
    fn write(&mut self, key: &str, name: K, part: u64, text: &[u8], out: &mut dyn Write) -> io::Result<()> {
        let next = self.0.len() + 1;
        let (number, written) = self.0.entry(name).or_insert((next, 0));
        write!(out, "{key}=({number})")?;
        if std::mem::replace(written, part) != part {
            out.write_all(b" ")?;
            out.write_all(text)?;
        }
        out.write_all(b"\n")
    }
}

/// The output, and the function and position that were written last.
pub struct Writer<W> {
    out: W,
    objects: Numbers<Text>,
    files: Numbers<Text>,
    /// In KCachegrind, a number stands for a function of one object and file.
    functions: Numbers<Function>,
    part: u64,
    columns: Columns,
    place: Option<Place>,
    at: At,
}

impl<W: Write> Writer<W> {
    pub fn new(out: W) -> Self {
        let (objects, files, functions) = (Numbers(HashMap::new()), Numbers(HashMap::new()), Numbers(HashMap::new()));
        Writer { out, objects, files, functions, part: 0, columns: Columns::default(), place: None, at: At::default() }
    }

    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    pub fn line(&mut self, line: &[u8]) -> io::Result<()> {
        self.out.write_all(line)?;
        self.out.write_all(b"\n")
    }

    /// Begins the costs of a part.
    pub fn part(&mut self, columns: &Columns) {
        (self.columns, self.place, self.at) = (columns.clone(), None, At::default());
        self.part += 1;
    }

    pub fn cost(&mut self, texts: &Texts, place: Place, at: At, costs: &[u8]) -> io::Result<()> {
        self.place(texts, place)?;
        self.position(at, true)?;
        self.line(costs)
    }

    #[allow(clippy::too_many_arguments)] // As many as a call has.
    pub fn call(
        &mut self,
        texts: &Texts,
        place: Place,
        to: Function,
        count: &[u8],
        target: At,
        at: At,
        costs: &[u8],
    ) -> io::Result<()> {
        self.place(texts, place)?;
        let (part, out) = (self.part, &mut self.out);
        if to.object != place.function.object {
            self.objects.write("cob", to.object, part, texts.get(to.object), out)?;
        }
        // callgrind_annotate removes the working directory from other file names, but not from a name after `cfi`.
        if to.file != place.file {
            self.files.write("cfi", to.file, part, texts.get(to.file), out)?;
        }
        self.functions.write("cfn", to, part, texts.get(to.name), out)?;
        out.write_all(b"calls=")?;
        out.write_all(count)?;
        out.write_all(b" ")?;
        self.position(target, false)?;
        self.line(b"")?;
        self.position(at, true)?;
        self.line(costs)
    }

    pub fn jump(&mut self, texts: &Texts, place: Place, to: Place, how: &[u8], target: At, at: At) -> io::Result<()> {
        self.place(texts, place)?;
        let (part, out) = (self.part, &mut self.out);
        if to.file != place.file {
            self.files.write("jfi", to.file, part, texts.get(to.file), out)?;
        }
        if to.function != place.function {
            self.functions.write("jfn", to.function, part, texts.get(to.function.name), out)?;
        }
        out.write_all(how)?;
        out.write_all(b" ")?;
        self.position(target, false)?;
        self.line(b"")?;
        self.position(at, true)?;
        self.line(b"")
    }

    /// Begins the costs of a place.
    fn place(&mut self, texts: &Texts, place: Place) -> io::Result<()> {
        let (part, out, function) = (self.part, &mut self.out, place.function);
        let mut file = self.place.filter(|old| old.function == function).map(|old| old.file);
        if file.is_none() {
            out.write_all(b"\n")?;
            self.objects.write("ob", function.object, part, texts.get(function.object), out)?;
            self.files.write("fl", function.file, part, texts.get(function.file), out)?;
            self.functions.write("fn", function, part, texts.get(function.name), out)?;
            file = Some(function.file);
        }
        if file != Some(place.file) {
            let key = if place.file == function.file { "fe" } else { "fi" };
            self.files.write(key, place.file, part, texts.get(place.file), out)?;
        }
        self.place = Some(place);
        Ok(())
    }

    /// Writes a position. `stays` is true if the next position is relative to this position. `stays` is false for targets.
    fn position(&mut self, at: At, stays: bool) -> io::Result<()> {
        for (column, (&at, &last)) in at.iter().zip(&self.at).enumerate().take(self.columns.count) {
            let out = &mut self.out;
            match at.abs_diff(last) {
                0 if last > 0 => write!(out, "* "),
                apart if last > 0 && apart < NEAR => write!(out, "{}{apart} ", if at > last { '+' } else { '-' }),
                _ if Some(column) == self.columns.line => write!(out, "{at} "),
                _ => write!(out, "{at:#x} "),
            }?;
        }
        if stays {
            self.at = at;
        }
        Ok(())
    }
}
