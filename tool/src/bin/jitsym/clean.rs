//! `jitsym clean`

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use jitsym::Cleaned;
use jitsym_tool::injected;

use crate::{complain, written, Outcome};
use jitsym_tool::text::Shown;

/// Remove libjitsym's perf maps, jitdumps, region files and spools of this user's dead processes
#[derive(clap::Args)]
#[command(after_help = "Example:\n  jitsym clean --dry-run --injected --older-than 7d")]
pub struct Clean {
    /// Print the files that would be removed, and remove none
    #[arg(long)]
    dry_run: bool,
    /// Search this directory, instead of JITSYM_DIR (or /tmp) and JITSYM_SPOOL_DIR (or /dev/shm); can be given several times
    #[arg(long, value_name = "DIR")]
    dir: Vec<PathBuf>,
    /// Remove only files that were last written more than TIME ago, such as 90s, 30m (minutes), 12h, 7d or 2w
    #[arg(long, value_name = "TIME", value_parser = span)]
    older_than: Option<Duration>,
    /// Remove also what `perf inject` and `jitsym inject` made for dead processes: jitted-PID-N.so and jitcode-PID-BUILDID.so in
    /// the searched directories, and entries in ~/.debug (also with --dir); recordings of these processes then lose names
    #[arg(long)]
    injected: bool,
}

fn span(word: &str) -> Result<Duration, String> {
    let problem = || "it is no number with s, m, h, d or w behind it, such as 12h".to_owned();
    let unit = word.chars().last().ok_or_else(problem)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        'w' => 7 * 86_400,
        _ => return Err(problem()),
    };
    let number = &word[..word.len() - unit.len_utf8()];
    let number = number.parse::<u64>().map_err(|_| problem())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(problem)
}

/// Removes the files of dead processes, and prints their names and number.
pub fn clean(asked: Clean, out: &mut dyn Write) -> Outcome {
    let Clean { dry_run, dir, older_than, injected } = asked;
    let dirs = if dir.is_empty() { jitsym::clean_dirs() } else { dir };
    let verb = if dry_run { "would remove" } else { "removed" };
    // A span that reaches past 1970 matches no file.
    let before = older_than.map(|span| SystemTime::now().checked_sub(span).unwrap_or(SystemTime::UNIX_EPOCH));
    let mut outcome = Outcome::Good;
    let (mut removed, mut kept, mut freed) = (0u64, 0u64, 0u64);
    let perfs = injected.then(|| injected::Clean::new(dry_run, before));
    let own = dirs.iter().map(|dir| (dir.clone(), jitsym::clean(dir, dry_run, before)));
    let objects = perfs.iter().flat_map(|perfs| dirs.iter().map(|dir| (dir.clone(), perfs.objects(dir))));
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(|home| PathBuf::from(home).join(".debug"));
    let cache = perfs.iter().zip(home).map(|(perfs, cache)| (cache.clone(), perfs.cache(&cache)));
    for (dir, found) in own.chain(objects).chain(cache) {
        let found = found.unwrap_or_else(|error| {
            complain(&dir, &error);
            outcome = Outcome::Failed;
            Vec::new()
        });
        for Cleaned { path, kept: why, bytes } in found {
            outcome = outcome.max(written(match why {
                None => {
                    (removed, freed) = (removed + 1, freed + bytes);
                    writeln!(out, "{verb} {}", path.shown())
                }
                Some(why) => {
                    kept += 1;
                    writeln!(out, "kept {}: {why}", path.shown())
                }
            }));
        }
    }
    let (files, done) =
        (if removed == 1 { "file" } else { "files" }, if dry_run { "would be removed" } else { "removed" });
    outcome.max(written(writeln!(out, "{removed} {files} {done} ({}), {kept} kept", size(freed))))
}

/// A size in a readable unit.
fn size(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} bytes"),
        10_240..10_485_760 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}
