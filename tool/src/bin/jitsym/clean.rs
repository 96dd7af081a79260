//! `jitsym clean`

use std::io::Write;
use std::path::PathBuf;

use crate::{complain, written, Outcome};

/// Removes maps, jitdumps and spools of this user's dead processes from `dirs`, and says which.
pub fn clean(dirs: Vec<PathBuf>, dry_run: bool, out: &mut impl Write) -> Outcome {
    let dirs = if dirs.is_empty() { jitsym::clean_dirs() } else { dirs };
    let verb = if dry_run { "would remove" } else { "removed" };
    let mut outcome = Outcome::Good;
    for dir in dirs {
        let found = jitsym::clean(&dir, dry_run).unwrap_or_else(|error| {
            complain(&dir, &error);
            outcome = Outcome::Failed;
            Vec::new()
        });
        for jitsym::Cleaned { path, kept } in found {
            outcome = outcome.max(written(match kept {
                None => writeln!(out, "{verb} {}", path.display()),
                Some(why) => writeln!(out, "kept {}: {why}", path.display()),
            }));
        }
    }
    outcome
}
