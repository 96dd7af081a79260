//! Unwind tables are right whatever the description is: random descriptions, good and bad ones, against a model of what the
//! C header says (`model`), with gimli as the decoder, at every byte of the code.
//!
//! The cases are the same in each run. proptest's environment variables make others: `PROPTEST_CASES=100000` more of them,
//! `PROPTEST_RNG_SEED=N` different ones.

mod c_interface;
mod generate;
mod model;
mod section;
mod steps;

use jitsym::format::arch::Arch;
use jitsym::format::cfi::{encode, Tables};
use jitsym::{Error, SigningKey, Unwind};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};

use crate::cfi::Decoded;
use model::{expected, Description, FixedPlaces, States};

/// Where code lies in these tests.
const CODE: u64 = 0x7f12_3456_7801;

/// More bytes than any tables here have.
const TABLES_MAX: u64 = 1 << 20;

/// The same cases each time, unless the environment says otherwise.
fn config(cases: u32) -> Config {
    let from_environment = Config::default();
    let rng_seed = match from_environment.rng_seed {
        RngSeed::Random => RngSeed::Fixed(20_261_121),
        fixed => fixed,
    };
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { from_environment.cases } else { cases };
    Config { cases, rng_seed, failure_persistence: None, ..from_environment }
}

fn decode(arch: Arch, tables: &Tables, code_size: u64) -> Result<Decoded, String> {
    let (eh_frame, hdr) = tables.bytes.split_at(tables.eh_frame_size());
    Decoded::read(arch == Arch::Aarch64, CODE..CODE + code_size, eh_frame, hdr)
}

/// Checks that the description is refused for one of the faults, if it has any; its tables otherwise.
fn encoded(
    arch: Arch,
    description: &Description,
    code_size: u64,
    expected: &Result<States, Vec<Error>>,
) -> Result<Option<Tables>, String> {
    let result = description.with(|unwind| encode(arch, unwind, CODE, code_size));
    match (result, expected) {
        (Ok(Some(tables)), Ok(_)) => Ok(Some(tables)),
        (Err(error), Err(faults)) if faults.contains(&error) => Ok(None),
        // Where the tables end is known when they are made.
        (Err(Error::TooLarge), _) if code_size + TABLES_MAX > 1 << 31 => Ok(None),
        (result, expected) => Err(format!("result {result:?}, but expected {expected:?}")),
    }
}

fn arch_and_description(sizes: impl Strategy<Value = u64>) -> impl Strategy<Value = (Arch, u64, Description)> {
    let sizes_and_arch = (generate::arch(), sizes);
    sizes_and_arch.prop_flat_map(|(arch, size)| (Just(arch), Just(size), generate::description(arch, size)))
}

proptest! {
    #![proptest_config(config(2000))]

    /// Every byte of the code.
    #[test]
    fn small_code((arch, size, description) in arch_and_description(generate::small_size())) {
        let expected = expected(arch, &description, size);
        let tables = encoded(arch, &description, size, &expected).map_err(TestCaseError::fail)?;
        if let Some(tables) = tables {
            let decoded = decode(arch, &tables, size).map_err(TestCaseError::fail)?;
            decoded.compare(&expected.unwrap_or_default(), 0..size).map_err(TestCaseError::fail)?;
            prop_assert_eq!(decoded.b_key, description.signed() == Some(SigningKey::B));
        }
    }

    /// Rows that lie far apart: the bytes around each change, and some between.
    #[test]
    fn large_code(
        (arch, size, description) in arch_and_description(generate::large_size()),
        more in prop::collection::vec(any::<prop::sample::Index>(), 8),
    ) {
        let expected = expected(arch, &description, size);
        let tables = encoded(arch, &description, size, &expected).map_err(TestCaseError::fail)?;
        if let (Some(tables), Ok(expected)) = (tables, expected) {
            let around = expected.iter().flat_map(|row| row.0.saturating_sub(1)..row.0 + 2);
            let more = more.iter().map(|index| index.index(size as usize) as u64);
            let offsets = [0, size - 1].into_iter().chain(around).chain(more).filter(|&offset| offset < size);
            let decoded = decode(arch, &tables, size).map_err(TestCaseError::fail)?;
            decoded.compare(&expected, offsets).map_err(TestCaseError::fail)?;
        }
    }

    /// Tables that are made to fit another size are the tables of that size.
    #[test]
    fn other_size(
        (arch, size, description) in arch_and_description(generate::small_size()),
        other in prop_oneof![generate::small_size(), generate::large_size()],
    ) {
        // An epilogue up to the end of the code has no end in other code.
        let to_the_end = |size| match &description {
            Description::FramePointer(places, ..) => {
                u64::from(places.epilogue_begin) == size || u64::from(places.epilogue_end) == size
            }
            Description::FixedFrame(places, ..) => {
                u64::from(places.epilogue_begin) == size || u64::from(places.epilogue_end) == size
            }
            Description::Rows(_) => false,
        };
        let tables = |size| description.with(|unwind| encode(arch, unwind, CODE, size));
        if let (Ok(Some(first)), Ok(Some(second))) = (tables(size), tables(other)) {
            if !to_the_end(size) && !to_the_end(other) {
                prop_assert_eq!(first.check_size(other), Ok(()));
                let mut copy = vec![0; first.bytes.len()];
                first.copy_to(&mut copy, other);
                prop_assert_eq!(copy, second.bytes);
            }
        }
    }

    /// A section as a compiler makes it: what it says of the code is said of the code, and nothing else.
    #[test]
    fn ready_made_section(section in section::section(), size in generate::small_size(), arch in generate::arch()) {
        let at = CODE.wrapping_add(section.distance as u64);
        let bytes = section.bytes(at, CODE);
        let result = encode(arch, &Unwind::EhFrame { bytes: &bytes, addr: at }, CODE, size);
        let expected = section.expected(arch, size);
        if expected.iter().all(|row| row.1.is_none()) {
            prop_assert_eq!(result, Err(Error::UnwindFormat));
        } else {
            let tables = result.map_err(|error| TestCaseError::fail(format!("{error:?} for {bytes:02x?}")))?;
            let tables = tables.expect("tables");
            let decoded = decode(arch, &tables, size).map_err(TestCaseError::fail)?;
            decoded.compare(&expected, 0..size).map_err(TestCaseError::fail)?;
        }
    }
}

/// No random choice can be trusted to find these.
#[test]
fn limits_of_the_size() {
    for (arch, description) in [
        (Arch::X86_64, Description::FixedFrame(FixedPlaces::default(), 8, Vec::new())),
        (Arch::Aarch64, Description::FixedFrame(FixedPlaces::default(), 0, Vec::new())),
        (Arch::Riscv64, Description::Rows(Vec::new())),
    ] {
        let encode = |size| description.with(|unwind| encode(arch, unwind, CODE, size));
        assert_eq!(encode(0), Err(Error::SizeZero));
        for size in [1 << 31, 1 << 32, u64::MAX - 7, u64::MAX, i32::MAX as u64] {
            assert_eq!(encode(size), Err(Error::TooLarge), "{size}");
        }
        // The largest code whose tables still reach it.
        let eh_frame = encode(1).expect("encoded").expect("tables").eh_frame_size() as u64;
        let largest = (1 << 31) - eh_frame.next_multiple_of(8);
        for size in largest - 9..=largest {
            let expected = expected(arch, &description, size).expect("good");
            let tables = encode(size).expect("encoded").expect("tables");
            let decoded = decode(arch, &tables, size).expect("sound");
            decoded.compare(&expected, [0, 1, size / 2, size - 1].into_iter()).expect("right");
        }
        assert_eq!(encode(largest + 9), Err(Error::TooLarge));
    }
}

/// The generators keep the balance: were all descriptions refused, or none, the other tests would say little.
#[test]
fn good_and_bad_descriptions() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::new(config(1));
    let cases = arch_and_description(generate::small_size());
    let mut counts = [[0; 2]; 3];
    for _ in 0..2000 {
        let (arch, size, description) = cases.new_tree(&mut runner).expect("a value").current();
        let kind = match &description {
            Description::FramePointer(..) => 0,
            Description::FixedFrame(..) => 1,
            Description::Rows(_) => 2,
        };
        counts[kind][usize::from(expected(arch, &description, size).is_ok())] += 1;
    }
    println!("refused and accepted, by kind: {counts:?}");
    assert!(counts.iter().all(|&[bad, good]| bad >= 10 && good >= 100), "refused and accepted, by kind: {counts:?}");
}
