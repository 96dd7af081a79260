//! The example's compiler, as it is and with mistakes.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::support::{compile, root, scratch_dir, Link};

pub fn toy() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compile("gcc", &["examples/toy_jit.c"], Link::Shared, &["-O1"], "toy_jit"))
}

/// The toy with a mistake: one text of it is another one.
pub fn broken(name: &str, right: &str, wrong: &str) -> PathBuf {
    let source = std::fs::read_to_string(root().join("examples/toy_jit.c")).expect("source");
    assert!(source.contains(right), "{right}");
    let path = scratch_dir(format!("broken-{name}")).join(format!("{name}.c"));
    std::fs::write(&path, source.replace(right, wrong)).expect("source");
    compile("gcc", &[path.to_str().expect("path")], Link::Shared, &["-O1"], name)
}

/// The toy without `struct_size`.
pub fn no_size() -> PathBuf {
    const CODE: &str = "jitsym_code code = JITSYM_CODE(function->code, function->size, function->name);";
    broken("no_size", CODE, &format!("{CODE} code.struct_size = 0;"))
}
