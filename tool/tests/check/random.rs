//! Numbers at random from a seed.

/// xorshift64*
pub struct Random(u64);

impl Random {
    /// Seeds that follow one another have nothing in common.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Below `end`; 0 if that is 0.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end.max(1)
    }

    pub fn one_in(&mut self, end: usize) -> bool {
        self.below(end) == 0
    }
}
