//! Determines whether and how the times of a jitdump can be compared with the times of a recording.

use crate::perf_data::attributes::Attribute;

use super::survey::Conversion;

/// The clock of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    Monotonic,
    /// The kernel's default clock, which is the processor's counter after a conversion.
    Kernel,
    /// Another clock that the user has chosen.
    Other(i32),
    /// Events have different clocks.
    Mixed,
}

impl Clock {
    pub fn of(attributes: &[Attribute]) -> Clock {
        let clock = attributes.first().and_then(Attribute::clock);
        if attributes.iter().any(|attribute| attribute.clock() != clock) {
            return Clock::Mixed;
        }
        match clock {
            None => Clock::Kernel,
            Some(libc::CLOCK_MONOTONIC) => Clock::Monotonic,
            Some(other) => Clock::Other(other),
        }
    }

    fn name(self) -> String {
        match self {
            Clock::Monotonic => "CLOCK_MONOTONIC".into(),
            Clock::Kernel => "the kernel's own clock".into(),
            Clock::Other(libc::CLOCK_REALTIME) => "CLOCK_REALTIME".into(),
            Clock::Other(libc::CLOCK_MONOTONIC_RAW) => "CLOCK_MONOTONIC_RAW".into(),
            Clock::Other(libc::CLOCK_BOOTTIME) => "CLOCK_BOOTTIME".into(),
            Clock::Other(libc::CLOCK_TAI) => "CLOCK_TAI".into(),
            Clock::Other(number) => format!("clock {number}"),
            Clock::Mixed => "several clocks".into(),
        }
    }
}

/// The conversion from times of a jitdump to times of the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    Same,
    Counter(Conversion),
}

impl Times {
    /// Returns the conversion. The error describes why the times cannot be compared, and how to make a recording whose times
    /// can be.
    pub fn between(clock: Clock, by_counter: bool, conversion: Option<Conversion>) -> Result<Times, String> {
        match (by_counter, clock, conversion) {
            (false, Clock::Monotonic, _) => Ok(Times::Same),
            (true, Clock::Kernel, Some(conversion)) => Ok(Times::Counter(conversion)),
            (true, Clock::Kernel, None) => {
                Err("has times of the processor's counter, and the recording does not tell how \
                they become times of the kernel: run the program without JITDUMP_USE_ARCH_TIMESTAMP, and record with \
                `perf record -k 1`"
                    .into())
            }
            (true, clock, _) => Err(format!(
                "has times of the processor's counter, and the recording has times of {}: record without the option -k",
                clock.name()
            )),
            (false, clock, _) => Err(format!(
                "has times of CLOCK_MONOTONIC, and the recording has times of {}: record with `perf record -k 1`",
                clock.name()
            )),
        }
    }

    /// The time in the recording. This time is never 0, because 0 would mean that an event has no time.
    pub fn convert(&self, time: u64) -> u64 {
        let converted = match *self {
            Times::Same => time,
            // The kernel converts in this way: include/uapi/linux/perf_event.h, perf_event_mmap_page.
            Times::Counter(Conversion { shift, mult, zero, cycles, mask, is_short }) => {
                let time = if is_short { cycles.wrapping_add(time.wrapping_sub(cycles) & mask) } else { time };
                let product = u128::from(time) * u128::from(mult);
                zero.wrapping_add((product >> (shift & 63)) as u64)
            }
        };
        converted.clamp(1, u64::MAX - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_as_the_kernel_converts_it() {
        let conversion =
            Conversion { shift: 31, mult: 1_000_000_007, zero: 12345, cycles: 0, mask: 0, is_short: false };
        let as_kernel = |cyc: u64| {
            let (quot, rem) = (cyc >> 31, cyc & ((1 << 31) - 1));
            12345 + quot * 1_000_000_007 + ((rem * 1_000_000_007) >> 31)
        };
        for cyc in [0, 1, 77_777_777_777, 1 << 52] {
            assert_eq!(Times::Counter(conversion).convert(cyc), as_kernel(cyc));
        }
        let short = Conversion { cycles: 0x1_0000_0010, mask: 0xffff_ffff, is_short: true, ..conversion };
        assert_eq!(Times::Counter(short).convert(0x20), as_kernel(0x1_0000_0020), "the upper bits are missing");
        assert_eq!(Times::Same.convert(0), 1, "0 is no time");
    }

    #[test]
    fn clocks_that_differ() {
        assert_eq!(Times::between(Clock::Monotonic, false, None), Ok(Times::Same));
        let cure = |clock, by_counter| Times::between(clock, by_counter, None).unwrap_err();
        assert!(cure(Clock::Kernel, false).ends_with("record with `perf record -k 1`"));
        assert!(cure(Clock::Other(libc::CLOCK_REALTIME), false).contains("times of CLOCK_REALTIME"));
        assert!(cure(Clock::Monotonic, true).ends_with("record without the option -k"));
        assert!(cure(Clock::Kernel, true).contains("does not"));
    }
}
