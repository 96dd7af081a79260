//! Makes random numbers for tests of sinks. A failed test prints its seed.

/// The random number generator xorshift64*.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % end
    }
}

pub struct Seed(pub u64);

impl Seed {
    pub fn new() -> Seed {
        let given = std::env::var("JITSYM_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        Seed(given.unwrap_or_else(|| u64::from(std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos()) + 1))
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("again with JITSYM_TEST_SEED={}", self.0);
        }
    }
}
