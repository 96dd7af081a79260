//! `jitsym clean`

use std::io::Write;
use std::path::PathBuf;

use crate::{complain, written, Outcome};

/// Removes maps, jitdumps, files of regions and spools of this user's dead processes
#[derive(clap::Args)]
#[command(after_help = "Example:\n  jitsym clean --dry-run")]
pub struct Clean {
    /// Only says which
    #[arg(long)]
    dry_run: bool,
    /// Where they are looked for, and nowhere else; without it in JITSYM_DIR or /tmp, and in the directory of the spools
    #[arg(long, value_name = "DIR")]
    dir: Vec<PathBuf>,
}

/// Removes what dead processes have left, and says which files that are.
pub fn clean(asked: Clean, out: &mut dyn Write) -> Outcome {
    let Clean { dry_run, dir } = asked;
    let dirs = if dir.is_empty() { jitsym::clean_dirs() } else { dir };
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
