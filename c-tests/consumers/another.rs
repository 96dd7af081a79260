//! Another library that is written in Rust, with a runtime library of its own.

use std::panic::catch_unwind;

/// Returns `number`, or minus the number that a panic has brought, for numbers above 1.
#[no_mangle]
pub extern "C" fn another(number: i32) -> i32 {
    std::panic::set_hook(Box::new(|_| {}));
    let result = catch_unwind(|| {
        let text = format!("{number}");
        assert!(number < 2, "{text}");
        number
    });
    match result {
        Ok(number) => number,
        Err(panic) => panic.downcast_ref::<String>().and_then(|text| text.parse().ok()).map_or(0, |n: i32| -n),
    }
}
