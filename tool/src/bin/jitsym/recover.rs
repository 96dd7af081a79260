//! `jitsym recover`

use std::path::Path;

use jitsym_tool::text::printable;

/// Completes the files of all dead processes of this user that left a spool in `dir`, or of those with these pids.
pub fn recover(dir: &Path, pids: &[u32]) -> Result<(), String> {
    let wanted = |pid| pids.is_empty() || pids.contains(&pid);
    let reports = jitsym::recover(dir, &wanted).map_err(|error| format!("{}: {error}", dir.display()))?;
    let mut failed = false;
    for report in reports {
        // The paths in them are those in the spools.
        let problem = |problem: &String| format!("; {}", printable(problem.as_bytes()));
        let problems: String = report.problems.iter().map(problem).collect();
        println!("{}: {} records completed{problems}", report.pid, report.records);
        failed |= report.kept;
    }
    if failed {
        return Err("some files are not complete; their spools are kept".into());
    }
    Ok(())
}
