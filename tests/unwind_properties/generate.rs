//! Random descriptions: most of them good, and often at the limits of what is accepted.

use jitsym::format::arch::Arch;
use jitsym::{SavedRegister, SigningKey};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::{select, Index};

use super::model::{machine, Description, FixedPlaces, Places, Row, Saved};

pub fn arch() -> impl Strategy<Value = Arch> {
    select(vec![Arch::X86_64, Arch::Aarch64, Arch::Riscv64])
}

/// Sizes whose every byte can be looked at.
pub fn small_size() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 1u64..=17, 8 => 1u64..=300, 1 => 300u64..=5000]
}

/// Sizes up to what fits into the tables, and a bit more. Tables take between 60 bytes and some thousands.
pub fn large_size() -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => 60_000u64..=1 << 31,
        1 => (16u32..31).prop_flat_map(|bits| (1u64 << bits) - 9..(1 << bits) + 9),
        2 => (1u64 << 31) - 4000..=(1 << 31) - 2,
        1 => (1u64 << 31) - 300..=(1 << 31) + 1,
    ]
}

/// Distances from the CFA or up to it.
fn distance() -> impl Strategy<Value = i32> {
    prop_oneof![
        8 => (-24i32..=1).prop_map(|slots| 8 * slots),
        4 => (-20i32..=600).prop_map(|slots| 8 * slots),
        2 => any::<i32>().prop_map(|bytes| bytes & !7),
        1 => select(&[i32::MIN, i32::MIN + 8, i32::MAX & !7, -1024, -1016, 1024, 127 * 8, 128 * 8][..]),
    ]
}

/// Registers and where they are saved; `fixed` are those that the library itself has something to say of.
fn good_saved(arch: Arch, fixed: bool) -> BoxedStrategy<Saved> {
    let machine = machine(arch);
    let own = move |reg: u32| reg == u32::from(machine.fp) || reg == u32::from(machine.ra);
    let some = vec((select(machine.registers), distance()), 0..=6);
    let all = (Just(machine.registers.to_vec()), distance()).prop_map(|(all, first)| {
        all.into_iter().map(|reg| (reg, first.wrapping_sub(8 * reg as i32))).collect::<Vec<_>>()
    });
    prop_oneof![3 => Just(Vec::new()), 20 => some, 1 => all]
        .prop_map(move |list| {
            let mut saved = Saved::new();
            for (reg, offset) in list {
                // On x86-64 the call has stored the return address, wherever it is said to be.
                let offset = if arch == Arch::X86_64 && reg == 16 { -8 } else { offset };
                if !(fixed && own(reg)) && saved.iter().all(|other| other.reg != reg) {
                    saved.push(SavedRegister { reg, offset });
                }
            }
            saved
        })
        .boxed()
}

/// The same, now and then with something doubtful in it.
fn saved(arch: Arch, fixed: bool) -> BoxedStrategy<Saved> {
    let reg = prop_oneof![0u32..100, any::<u32>()];
    let extra = prop_oneof![
        (reg, distance()).prop_map(|(reg, offset)| SavedRegister { reg, offset }),
        (0u32..32, any::<i32>()).prop_map(|(reg, offset)| SavedRegister { reg, offset }),
    ];
    let doubtful = (good_saved(arch, fixed), extra, any::<Index>(), 0..3);
    let doubtful = doubtful.prop_map(|(mut saved, mut extra, index, how)| {
        if !saved.is_empty() && how > 0 {
            // The same again; or the register, in another place.
            let other = *index.get(&saved);
            extra = SavedRegister { offset: if how == 1 { other.offset } else { extra.offset }, ..other };
        }
        saved.insert(index.index(saved.len() + 1), extra);
        saved
    });
    prop_oneof![12 => good_saved(arch, fixed), 1 => doubtful].boxed()
}

fn cfa_offset() -> impl Strategy<Value = i32> {
    prop_oneof![
        1 => Just(0),
        20 => (1i32..=40).prop_map(|slots| 8 * slots),
        6 => distance(),
        1 => any::<i32>(),
    ]
}

/// An offset into the code, also of its end; seldom one beyond.
fn place(size: u64) -> impl Strategy<Value = u32> {
    let size = size.min(u32::MAX.into()) as u32;
    prop_oneof![
        40 => 0..=size,
        20 => 0..=size.min(40),
        10 => size.saturating_sub(20)..=size,
        10 => Just(size),
        1 => size..=size.saturating_add(3),
        1 => any::<u32>(),
    ]
}

/// Seldom on architectures that refuse a key.
fn signed(arch: Arch) -> impl Strategy<Value = Option<SigningKey>> {
    let key = select(&[SigningKey::A, SigningKey::B][..]);
    prop::option::weighted(if arch == Arch::Aarch64 { 0.5 } else { 0.02 }, key)
}

fn frame_pointer(arch: Arch, size: u64) -> BoxedStrategy<Description> {
    let sorted = vec(place(size), 5).prop_map(|mut places| {
        places.sort_unstable();
        places
    });
    // What is left out, what is exchanged, and whether the registers are saved before the frame pointer is set.
    let zero = vec(prop::bool::weighted(0.3), 5);
    let wild = prop::option::weighted(0.15, (0usize..5, place(size)));
    let places =
        (sorted, zero, wild, any::<bool>(), signed(arch)).prop_map(|(mut sorted, zero, wild, early, signed)| {
            if let Some((at, place)) = wild {
                sorted[at] = place;
            }
            let or_zero = |at: usize| if zero[at] { 0 } else { sorted[at] };
            let (set, saved_from) = if early { (2, 1) } else { (1, 2) };
            Places {
                pushed: or_zero(0),
                set: or_zero(set),
                saved_from: or_zero(saved_from),
                epilogue_begin: or_zero(3),
                // An end without a begin is worth only a few tries.
                epilogue_end: if zero[3] && !zero[0] { 0 } else { or_zero(4) },
                signed,
            }
        });
    let saved = prop_oneof![8 => saved(arch, true), 1 => saved(arch, false)];
    let parts = (places, prop_oneof![2 => Just(0), 3 => cfa_offset()], saved);
    parts.prop_map(|(places, cfa_offset, saved)| Description::FramePointer(places, cfa_offset, saved)).boxed()
}

fn fixed_frame(arch: Arch, size: u64) -> BoxedStrategy<Description> {
    let sorted = vec(place(size), 6).prop_map(|mut places| {
        places.sort_unstable();
        places
    });
    let zero = vec(prop::bool::weighted(0.3), 6);
    let wild = prop::option::weighted(0.15, (0usize..6, place(size)));
    let places = (sorted, zero, wild, signed(arch)).prop_map(move |(mut sorted, zero, wild, signed)| {
        if let Some((at, place)) = wild {
            sorted[at] = place;
        }
        let or_zero = |at: usize| if zero[at] { 0 } else { sorted[at] };
        let pushed = if zero[1] || arch == Arch::Riscv64 { 0 } else { or_zero(0) };
        let epilogue_begin = or_zero(4);
        FixedPlaces {
            pushed,
            sp_set: or_zero(1),
            saved_from: or_zero(2),
            sp_reset: if pushed == 0 || epilogue_begin == 0 { 0 } else { or_zero(3) },
            epilogue_begin,
            epilogue_end: if epilogue_begin == 0 { 0 } else { or_zero(5) },
            signed,
        }
    });
    let places = prop_oneof![1 => Just(FixedPlaces::default()), 3 => places];
    let saved = prop_oneof![4 => saved(arch, true), 1 => saved(arch, false)];
    let parts = (places, cfa_offset(), saved);
    parts.prop_map(|(places, at, saved)| Description::FixedFrame(places, at, saved)).boxed()
}

fn rows(arch: Arch, size: u64) -> BoxedStrategy<Description> {
    let end = size.min(u32::MAX.into()) as u32;
    let offsets = prop_oneof![
        10 => btree_set(0..end, 0..=14).prop_map(|set| set.into_iter().collect::<Vec<_>>()),
        3 => Just((0..end.min(200)).collect()),
        1 => Just(vec![end - 1]),
        1 => Just(vec![0, end - 1]),
        1 => (0..=end).prop_map(move |at| vec![at.min(end - 1)]),
        1 => vec(place(size), 0..4),
    ];
    let general = machine(arch).general;
    let register = prop_oneof![40 => 0..general, 1 => 0..100u32, 1 => any::<u32>()];
    let state = (register, cfa_offset(), saved(arch, false));
    // Rows are taken from a few states, so that many say what the row before has said already.
    let states = vec(state, 1..=5);
    (offsets, states, vec(any::<Index>(), 1..=20))
        .prop_map(|(offsets, states, picks)| {
            let picks = picks.iter().cycle();
            let row = |(offset, pick): (u32, &Index)| {
                let (cfa_register, cfa_offset, ref saved) = *pick.get(&states);
                Row { offset, cfa_register, cfa_offset, saved: saved.clone() }
            };
            Description::Rows(offsets.into_iter().zip(picks).map(row).collect())
        })
        .boxed()
}

pub fn description(arch: Arch, size: u64) -> BoxedStrategy<Description> {
    prop_oneof![4 => frame_pointer(arch, size), 3 => fixed_frame(arch, size), 4 => rows(arch, size)].boxed()
}
