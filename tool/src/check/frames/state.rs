//! The values in registers and on the stack, relative to the CFA, if the instructions determine them.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The value of a register or of a word of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// The CFA plus this number of bytes.
    Cfa(i64),
    /// The value that this register had in the caller. For the return address, the number is its column.
    Callers(u16),
    /// Any value.
    Unknown,
}

impl Value {
    pub fn plus(self, bytes: i64) -> Value {
        match self {
            Value::Cfa(at) => at.checked_add(bytes).map_or(Value::Unknown, Value::Cfa),
            _ => Value::Unknown,
        }
    }
}

/// The size of a word of the stack in bytes.
pub(super) const WORD: i64 = 8;
/// The number of general registers of the supported architectures, the stack pointer included.
pub(super) const REGISTERS: usize = 32;

/// The known values between two instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// The values, indexed by DWARF number.
    registers: [Value; REGISTERS],
    /// Words of the stack, by their distance from the CFA. A missing word was never written, or no table refers to it.
    slots: BTreeMap<i64, Value>,
    /// The words that tables refer to.
    named: Rc<BTreeSet<i64>>,
    /// Whether a frame may have existed on some path to this instruction.
    pub framed: bool,
    /// Whether the return address is signed. `None` if that is not known.
    pub signed: Option<bool>,
}

impl State {
    /// A state in which every register has the caller's value.
    pub fn new(named: Rc<BTreeSet<i64>>) -> State {
        let registers = std::array::from_fn(|register| Value::Callers(register as u16));
        State { registers, slots: BTreeMap::new(), named, framed: false, signed: Some(false) }
    }

    pub fn get(&self, register: u16) -> Value {
        self.registers.get(usize::from(register)).copied().unwrap_or(Value::Unknown)
    }

    pub fn set(&mut self, register: u16, value: Value) {
        if let Some(place) = self.registers.get_mut(usize::from(register)) {
            *place = value;
        }
    }

    /// The word at a distance from the CFA. `None` if it was never written.
    pub fn slot(&self, at: i64) -> Option<Value> {
        self.slots.get(&at).copied()
    }

    /// The words that have the caller's value of a register.
    pub fn slots_of(&self, register: u16) -> impl Iterator<Item = i64> + '_ {
        self.slots.iter().filter(move |&(_, &value)| value == Value::Callers(register)).map(|(&at, _)| at)
    }

    pub fn load(&self, address: Value) -> Value {
        match address {
            Value::Cfa(at) => self.slot(at).unwrap_or(Value::Unknown),
            _ => Value::Unknown,
        }
    }

    /// Stores a whole word.
    pub fn store(&mut self, address: Value, value: Value) {
        self.overwrite(address, WORD);
        if let Value::Cfa(at) = address {
            if value != Value::Unknown {
                self.slots.insert(at, value);
            }
        }
    }

    /// Removes the values of words that were overwritten at this address. Addresses outside of the frame are ignored.
    pub fn overwrite(&mut self, address: Value, size: i64) {
        let Value::Cfa(at) = address else { return };
        let (Some(from), Some(to)) = (at.checked_sub(WORD - 1), at.checked_add(size)) else { return };
        if from >= to {
            return;
        }
        self.slots.range_mut(from..to).for_each(|(_, value)| *value = Value::Unknown);
        let named = self.named.clone();
        for &at in named.range(from..to) {
            self.slots.insert(at, Value::Unknown);
        }
    }

    /// Keeps only the values that are equal in the other state. Returns whether any value was removed.
    pub fn join(&mut self, other: &State) -> bool {
        let before = self.clone();
        for (mine, &theirs) in self.registers.iter_mut().zip(&other.registers) {
            if *mine != theirs {
                *mine = Value::Unknown;
            }
        }
        for (at, value) in &mut self.slots {
            if other.slots.get(at) != Some(value) {
                *value = Value::Unknown;
            }
        }
        for &at in other.slots.keys() {
            self.slots.entry(at).or_insert(Value::Unknown);
        }
        self.framed |= other.framed;
        self.signed = self.signed.filter(|_| self.signed == other.signed);
        *self != before
    }
}
