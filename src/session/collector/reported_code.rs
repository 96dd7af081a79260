//! Code that runtimes report through Intel's JIT profiling API, and its registrations.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::merge_lines::{self, Row};
use crate::api::code::{Bytes, Code, FramePointer, Inline, Lines, MoveTarget, Unwind};
use crate::api::error::{Error, Result};
use crate::api::Id;
use crate::format::arch;
use crate::sys::sync::outside::{Mutex, PoisonError};
use crate::sys::timed_lock::{Locked, TimedLock};
use crate::sys::{dynamic_symbols, process_memory};

/// A method, as described by an event.
#[derive(Clone, Copy, Debug)]
pub struct Method<'a> {
    pub id: u32,
    pub name: Option<&'a [u8]>,
    pub addr: u64,
    pub size: u32,
    pub rows: &'a [Row],
    pub file: Option<&'a [u8]>,
}

/// The calls that register, unregister and move the code of methods.
pub trait Registrations {
    fn register(&self, code: &Code<'_>) -> Result<Id>;
    fn unregister(&self, id: Id) -> Result<()>;
    fn move_code(&self, id: Id, target: &MoveTarget<'_>) -> Result<()>;
}

/// The maximum number of callers' addresses in `Collector::modules`.
const CALLERS_MAX: usize = 2048;

/// The reports of the runtimes in a process.
#[derive(Debug, Default)]
pub struct Collector {
    pub state: TimedLock<State>,
    /// For each caller's address, the loaded object that contains it.
    modules: Mutex<HashMap<u64, u64>>,
}

#[derive(Debug, Default)]
pub struct State {
    /// Live code, by its address.
    regions: BTreeMap<u64, Region>,
    /// The address of code whose last inlined functions are not registered yet.
    unsettled: Option<u64>,
    /// Methods with live code.
    methods: HashMap<Owner, Symbol>,
}

/// Identifies a method: the address of the loaded object that contains its runtime, and the number that this runtime has
/// given the method.
type Owner = (u64, u32);

/// The description in a method's first event. Later events may omit the description.
#[derive(Debug)]
struct Symbol {
    name: Vec<u8>,
    file: Vec<u8>,
    /// The addresses of the method's code.
    addrs: BTreeSet<u64>,
}

/// A piece of a method's code.
#[derive(Debug)]
struct Region {
    size: u32,
    owner: Owner,
    id: Id,
    name: Vec<u8>,
    /// The lines and the inlined functions of the code.
    source: merge_lines::Source,
    inlined: Vec<merge_lines::Inlined>,
    /// How many of the inlined functions are registered.
    registered: usize,
}

impl Region {
    fn end(&self, addr: u64) -> u64 {
        addr + u64::from(self.size)
    }

    /// Registers the code with its name, lines and inlined functions.
    fn register(&mut self, session: &impl Registrations, addr: u64) -> Result<()> {
        let rows = merge_lines::merged(self.size, &self.source, &self.inlined)?;
        let inlines = merge_lines::placed(self.owner.1, &self.source, &self.inlined)?;
        let mut start = [0; 16];
        let start_len = start.len().min(self.size as usize);
        process_memory::read(std::process::id(), addr, &mut start[..start_len]);
        let unwind = match arch::makes_frame_pointer(&start[..start_len]) {
            true => Unwind::FramePointer(FramePointer::default()),
            false => Unwind::None,
        };
        let plain = Code { name: &self.name, ..Code::new(addr, self.size.into(), "") };
        let code = Code { unwind, lines: Lines::Rows(&rows), inlines: &inlines, ..plain };
        self.id = match session.register(&code) {
            // If the inlined functions are refused, the lines are still correct.
            Err(Error::Inline) => session.register(&Code { inlines: &[] as &[Inline<'_>], ..code }),
            registered => registered,
        }?;
        self.registered = self.inlined.len();
        Ok(())
    }
}

impl Collector {
    /// Locks the state. Fails after a timeout, because another call may hold the lock while it waits for a disk.
    pub fn lock(&self) -> Result<Locked<'_, State>> {
        self.state.lock_in_time().ok_or(Error::Timeout)
    }

    /// The loaded object that contains a caller's address, or 0. No lock is held during the call of the loader.
    pub fn module(&self, caller: u64) -> u64 {
        let modules = || self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&known) = modules().get(&caller) {
            return known;
        }
        let module = dynamic_symbols::object_at(caller).unwrap_or_default();
        let mut modules = modules();
        if modules.len() >= CALLERS_MAX {
            // Usually only a few instructions call the API. The number of callers reaches `CALLERS_MAX` only if compiled code
            // calls the API.
            modules.clear();
        }
        modules.insert(caller, module);
        module
    }
}

impl State {
    pub fn load(&mut self, session: &impl Registrations, module: u64, method: &Method<'_>) -> Result<bool> {
        let owner = (module, method.id);
        self.methods.try_reserve(1).map_err(|_| Error::NoMemory)?;
        let known = self.methods.get(&owner);
        let name = method.name.or(known.map(|known| &*known.name)).ok_or(Error::Null)?;
        let file = method.file.or(known.map(|known| &*known.file)).unwrap_or_default();
        let source = merge_lines::Source::new(method.rows, 0, method.size, file)?;
        let mut region = Region {
            size: method.size,
            owner,
            id: Id(0),
            name: merge_lines::copy_of(name)?,
            source,
            inlined: Vec::new(),
            registered: 0,
        };
        let symbol =
            Symbol { name: merge_lines::copy_of(name)?, file: merge_lines::copy_of(file)?, addrs: BTreeSet::new() };
        region.register(session, method.addr)?;
        self.end_overlapped(method.addr, region.end(method.addr));
        self.methods.entry(owner).or_insert(symbol).addrs.insert(method.addr);
        self.regions.insert(method.addr, region);
        Ok(true)
    }

    /// Drops the entries of code that new code has overwritten, because the registration of the new code has ended their
    /// registrations.
    fn end_overlapped(&mut self, addr: u64, end: u64) {
        while let Some((&old, region)) = self.regions.range(..end).next_back() {
            if region.end(old) <= addr {
                break;
            }
            let owner = region.owner;
            self.regions.remove(&old);
            if let Some(symbol) = self.methods.get_mut(&owner) {
                symbol.addrs.remove(&old);
                if symbol.addrs.is_empty() {
                    self.methods.remove(&owner);
                }
            }
        }
    }

    /// Adds an inlined function. `parent` is the same as in `collector::inline`.
    pub fn inline(&mut self, session: &impl Registrations, parent: u32, method: &Method<'_>) -> Result<bool> {
        let Some((&addr, _)) = self.regions.range(..=method.addr).next_back() else { return Ok(false) };
        if self.unsettled != Some(addr) {
            self.settle(session);
        }
        let Some(region) = self.regions.get_mut(&addr) else { return Ok(false) };
        let begin = method.addr - addr;
        let Some(end) = u32::try_from(begin + u64::from(method.size)).ok().filter(|&end| end <= region.size) else {
            return Ok(false);
        };
        let begin = begin as u32;
        let source = merge_lines::Source::new(method.rows, begin, end, method.file.unwrap_or_default())?;
        let name = merge_lines::copy_of(method.name.ok_or(Error::Null)?)?;
        region.inlined.try_reserve(1).map_err(|_| Error::NoMemory)?;
        region.inlined.push(merge_lines::Inlined { id: method.id, parent, begin, end, name, source });
        // A registration contains all inlined functions of the code, but runtimes report these functions one by one, in any
        // order. A registration for each report would write the code once for each inlined function. So the registration may
        // wait for a later report of an inlined function, or for an event of another kind. An exit does not register the
        // waiting functions, because an exit must not allocate memory: a signal handler that calls `exit` may have interrupted
        // the allocator.
        if region.inlined.len() - region.registered <= region.registered / 8 {
            self.unsettled = Some(addr);
            return Ok(true);
        }
        if let Err(error) = region.register(session, addr) {
            region.inlined.pop();
            return Err(error);
        }
        self.unsettled = None;
        Ok(true)
    }

    /// Registers the inlined functions that were reported last.
    pub fn settle(&mut self, session: &impl Registrations) {
        let Some(addr) = self.unsettled.take() else { return };
        let Some(region) = self.regions.get_mut(&addr) else { return };
        if region.register(session, addr).is_err() {
            // The earlier registration, which has fewer inlined functions, stays valid.
            region.inlined.truncate(region.registered);
        }
    }

    pub fn unload(&mut self, session: &impl Registrations, owner: Owner) -> Result<bool> {
        let Some(symbol) = self.methods.remove(&owner) else { return Ok(false) };
        let mut ended = Ok(());
        for addr in symbol.addrs {
            if let Some(region) = self.regions.remove(&addr) {
                ended = ended.and(session.unregister(region.id));
            }
        }
        ended.map(|()| true)
    }

    /// Reports that the bytes of code have changed. For the session, this change is a move of the code to the address that the
    /// code already has.
    pub fn update(&self, session: &impl Registrations, addr: u64, size: u32) -> Result<bool> {
        let Some((&start, region)) = self.regions.range(..=addr).next_back() else { return Ok(false) };
        if addr.saturating_add(size.into()) > region.end(start) {
            return Ok(false);
        }
        // The name, lines and tables do not change.
        let target = MoveTarget { addr: start, bytes: Bytes::AtAddress, stable: false, gap: false };
        session.move_code(region.id, &target).map(|()| true)
    }
}
