//! A cursor that fills a byte buffer of known size in native byte order.

/// Size of an address of this machine in bytes.
pub const WORD: usize = size_of::<usize>();

/// The bytes of an address of this machine.
#[inline(always)]
pub fn word(value: u64) -> [u8; WORD] {
    (value as usize).to_ne_bytes()
}

/// Writes one value after the other. Values that do not fit are left out, because a panic in the host would be worse.
/// `is_full` returns whether the values fill the buffer exactly.
pub(super) struct Put<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl<'a> Put<'a> {
    pub fn new(out: &'a mut [u8]) -> Self {
        Put { out, at: 0 }
    }

    #[inline(always)]
    pub fn bytes(&mut self, bytes: &[u8]) {
        let end = self.at + bytes.len();
        if let Some(place) = self.out.get_mut(self.at..end) {
            place.copy_from_slice(bytes);
        }
        self.at = end;
    }

    #[inline(always)]
    pub fn u8(&mut self, value: u8) {
        self.bytes(&[value]);
    }

    #[inline(always)]
    pub fn u16(&mut self, value: u16) {
        self.bytes(&value.to_ne_bytes());
    }

    #[inline(always)]
    pub fn u32(&mut self, value: u32) {
        self.bytes(&value.to_ne_bytes());
    }

    #[inline(always)]
    pub fn u64(&mut self, value: u64) {
        self.bytes(&value.to_ne_bytes());
    }

    /// Writes an address, or a field that has the size of an address.
    #[inline(always)]
    pub fn word(&mut self, value: u64) {
        self.bytes(&word(value));
    }

    pub fn is_full(&self) -> bool {
        self.at == self.out.len()
    }
}
