//! Reports names, lines and unwind tables of live code to valgrind, in files that replace the code's mapping for a moment.
//!
//! valgrind's tools read names when code first runs. So calls wait for the writer while this sink runs. The sink runs only
//! under valgrind, because each report moves the memory of the code away for a moment (`sys/valgrind_mapping`). Without
//! valgrind, other threads could run the code at this moment.

mod files;
mod page_groups;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::files::{Files, NOT_FOR_CODE};
use self::page_groups::{Due, Function, Groups};
use crate::api::options::{Config, Sinks};
use crate::format::code_info::Info;
use crate::format::elf::object;
use crate::format::elf::valgrind_object::Content;
use crate::queue::record::CodeBytes;
use crate::queue::status::Status;
use crate::registry::Registry;
use crate::sink::retry::Retry;
use crate::sink::NewCode;
use crate::sink::{each_live, Close, GroupOf, Kind, Loaded, Origin, Round, Sink};
use crate::sys::mapping::page_size;
use crate::sys::maps;
use crate::sys::valgrind;
use crate::sys::valgrind_mapping::{self, exchange};

pub static KIND: Kind = Kind {
    bit: Sinks::VALGRIND,
    word: "valgrind",
    wants: Sinks::GROUPS.with(Sinks::MUST_WAIT),
    is_default: false,
    make: Some(|status| Box::new(Valgrind::new(status.clone()))),
};

/// How long the report to valgrind is delayed after code has ended, so that one report covers much code that ends at about the
/// same time. The delay ends early if new code is registered in a page of the ended code. When a page loses its last live code,
/// valgrind gets the report at once, because the host may unmap the page.
const FORGOTTEN_AFTER: Duration = Duration::from_millis(50);

struct Valgrind {
    status: Arc<Status>,
    groups: Groups,
    files: Files,
    /// The time at which `bring_up_to_date` first found that valgrind still knows ended code. `None` if valgrind knows no ended
    /// code.
    stale_since: Option<Instant>,
    /// The time of the next attempt to report code to valgrind, if an attempt has failed.
    again: Option<Retry>,
}

impl Valgrind {
    fn new(status: Arc<Status>) -> Valgrind {
        let files = Files::new(status.pid);
        Valgrind { status, groups: Groups::new(page_size() as u64), files, stale_since: None, again: None }
    }

    fn add(&mut self, id: u64, (addr, size): (u64, u64), name: &[u8], info: Option<Info<'_>>) {
        let old = self.end(id);
        // Code that moves keeps its former info.
        let info = info.unwrap_or_else(|| old.as_ref().map_or(Info::NOTHING, Function::info));
        // If there is no memory, the code stays without a name.
        if let Some(function) = Function::new(id, size, name, info) {
            self.groups.add(addr, function);
        }
    }

    /// Removes code that has ended or moved.
    fn end(&mut self, id: u64) -> Option<Function> {
        let (addr, function) = self.groups.remove(id)?;
        valgrind::discard_translations(addr, function.size);
        Some(function)
    }

    /// Reports changes to valgrind. `now` is true if a caller waits until valgrind knows all code.
    fn bring_up_to_date(&mut self, now: bool) {
        if now || self.again.as_ref().is_some_and(Retry::is_due) {
            self.groups.try_again();
        }
        self.stale_since = self.stale_since.filter(|_| self.groups.has_stale());
        if self.groups.has_stale() && self.stale_since.is_none() {
            self.stale_since = Some(Instant::now());
        }
        let with_stale = self.stale_since.is_some_and(|since| since.elapsed() >= FORGOTTEN_AFTER);
        if !with_stale && !self.groups.has_urgent() {
            return;
        }
        let (due, fresh) = self.groups.take_due(with_stale);
        let (mut is_all, mut has_ended, mut has_failed) = (true, false, false);
        for mut due in due {
            match self.tell(&mut due, &fresh) {
                Ok(Some(content)) => self.groups.told(&due.pages, content),
                Ok(None) => self.groups.forget(&due.pages),
                Err(error) => {
                    is_all = false;
                    self.groups.forget(&due.pages);
                    // The host may have unmapped code without unregistering it.
                    if self.groups.end_unless(&due.pages, is_mapped) {
                        has_ended = true;
                        continue;
                    }
                    if error.kind() != NOT_FOR_CODE {
                        self.groups.fail(&due.pages);
                        has_failed = true;
                    }
                    self.status.last_error.set(format!("cannot tell valgrind of code: {error}"));
                }
            }
        }
        self.groups.all_told(is_all);
        if has_failed {
            self.status.counters.write_errors.add(1);
            self.status.sink_is_behind(Sinks::VALGRIND);
            self.again = Some(Retry::after(self.again.as_ref()));
        }
        self.again = self.again.take().filter(|_| self.groups.has_failed());
        if has_ended {
            self.bring_up_to_date(false);
        }
    }

    /// Reports the code of a group of pages to valgrind. The report replaces what valgrind knew about these pages. `fresh` has
    /// the sorted addresses of all new functions. Returns the contents of the file, or `None` if the pages have no code.
    fn tell(&mut self, due: &mut Due, fresh: &[u64]) -> io::Result<Option<Content>> {
        let pages = &due.pages;
        let Some((first, function)) = self.groups.within(pages).next() else {
            // SAFETY: the sink runs only under valgrind.
            let done = self.files.in_pieces(pages, |pieces| unsafe { exchange(pieces, None) });
            // If the host has unmapped the pages, valgrind has already forgotten them.
            let is_refused = done.is_err() && is_mapped(pages.start, pages.end - pages.start);
            return if is_refused { done.map(|()| None) } else { Ok(None) };
        };
        let has_lines = function.info().lines().is_some();
        let add = |content: &mut Content, (addr, function): (u64, &Function)| {
            let (name, info) = (function.name(), function.info());
            let function = object::Function { addr, size: function.size, name, info };
            content.add(&function, pages).ok_or(io::ErrorKind::OutOfMemory)
        };
        let content = match due.content.take() {
            Some(mut content) => {
                self.groups.these_within(fresh, pages).try_for_each(|function| add(&mut content, function))?;
                content
            }
            None => {
                let mut content = Content::default();
                self.groups.within(pages).try_for_each(|function| add(&mut content, function))?;
                content
            }
        };
        let data = valgrind_mapping::data_page()?;
        let executable = content.executable(pages, data, page_size() as u64).ok_or(io::ErrorKind::OutOfMemory)?;
        let code = self.groups.within(pages).map(|(addr, function)| addr..addr + function.size);
        self.files.show(due, &executable, code, data)?;
        // Newer valgrinds read the rest of the file only when they are first asked for a line.
        let line = valgrind::line_of(first.max(pages.start));
        if has_lines && line.is_empty() && first >= pages.start {
            return Err(io::Error::other("it has not taken the file for code"));
        }
        Ok(Some(content))
    }
}

/// Whether the whole range is mapped. Returns true if the mappings cannot be read.
fn is_mapped(addr: u64, size: u64) -> bool {
    let end = addr + size;
    maps::within(addr, end).map_or(true, |maps| maps.iter().map(|map| map.len_within(addr, end)).sum::<u64>() == size)
}

impl Sink for Valgrind {
    fn open(&mut self, config: &Config) -> Result<(), String> {
        if !valgrind::is_running() {
            return Err("the process does not run under valgrind".into());
        }
        self.groups.begin();
        self.files.configure(config);
        Ok(())
    }

    fn load(&mut self, code: &Loaded<'_>, _: &mut Registry) {
        match code.origin {
            Origin::Registered(_, _, load) => {
                if let CodeBytes::Here(bytes) = load.code() {
                    // The files also contain the padding in the code, which valgrind may consider uninitialized.
                    valgrind::make_defined(bytes);
                }
            }
            Origin::Moved { body, .. } => valgrind::make_defined(body),
            Origin::LeftRegion(..) => {}
        }
        self.add(code.id, (code.live.addr, code.live.size), code.name, code.origin.info());
    }

    fn enter(&mut self, code: &NewCode<'_>) {
        valgrind::make_defined(code.bytes);
        self.add(code.id, (code.live.addr, code.live.size), code.name, Some(code.info));
    }

    fn load_live(&mut self, registry: &mut Registry, group_of: GroupOf<'_>) -> bool {
        each_live(
            registry,
            group_of,
            self,
            |_, _, _| true,
            |valgrind, id, live, name, info| {
                valgrind.add(id, (live.addr, live.size), name, Some(info));
            },
        )
    }

    fn gone(&mut self, id: u64) {
        self.end(id);
    }

    fn write(&mut self, round: &mut Round<'_>) -> io::Result<()> {
        // Without `unreported`, helgrind and DRD would report races, because they do not understand how two threads of this
        // library wait for each other.
        valgrind::unreported(|| self.bring_up_to_date(round.now));
        Ok(())
    }

    fn is_ok(&self) -> bool {
        !self.groups.has_failed()
    }

    fn wake_in(&self) -> Option<Duration> {
        self.again.as_ref().map(Retry::remaining)
    }

    fn has_work(&self) -> bool {
        self.groups.has_stale()
    }

    fn close(&mut self, how: Close) -> io::Result<()> {
        // valgrind is not made to forget the code, because the code may still run.
        self.groups.begin();
        self.again = None;
        if how == Close::Remove {
            self.files.remove();
        }
        Ok(())
    }
}
