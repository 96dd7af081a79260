//! Where this machine gets its Debian packages from: asked of apt itself, so that every form of its configuration counts.

use std::process::Command;

use anyhow::{Context, Result};

use crate::run;

/// The archive that the machine's own suite comes from. All suites of Debian lie in it.
pub fn mirror() -> Result<String> {
    let codename = own_codename()?;
    choose(&targets()?, &[&codename, "stable", "testing", "unstable", "sid"])
        .with_context(|| format!("apt knows no archive with the suite {codename} of Debian; name one with --mirror"))
}

/// The archive with the security updates of the machine's own suite. The updates of other suites lie in it too.
pub fn security() -> Result<String> {
    let codename = own_codename()?;
    choose(&targets()?, &[&format!("{codename}-security"), "stable-security"])
        .with_context(|| format!("apt knows no archive with the suite {codename}-security of Debian"))
}

fn own_codename() -> Result<String> {
    let release = std::fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    codename(&release).context("/etc/os-release has no VERSION_CODENAME")
}

/// A line of URI, suite and component for each archive that apt knows.
fn targets() -> Result<String> {
    let mut indextargets = Command::new("apt-get");
    // Not what apt has fetched so far (a fresh machine has fetched nothing), but what it is told to fetch.
    indextargets.args(["indextargets", "--no-release-info", "--format", "$(REPO_URI)\t$(RELEASE)\t$(COMPONENT)"]);
    run::stdout(&mut indextargets)
}

/// The suite of this machine, if it is Debian.
pub fn own_suite() -> Option<String> {
    let release = std::fs::read_to_string("/etc/os-release").ok()?;
    let debian = release.lines().any(|line| line.trim() == "ID=debian");
    codename(&release).filter(|_| debian)
}

fn codename(os_release: &str) -> Option<String> {
    let value = os_release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="))?;
    Some(value.trim().trim_matches('"').to_string())
}

/// The archive of the first of these suites that apt knows.
fn choose(targets: &str, suites: &[&str]) -> Option<String> {
    suites.iter().find_map(|name| {
        targets.lines().find_map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            let [uri, suite, component] = fields[..] else { return None };
            (suite == *name && component == "main").then(|| uri.trim_end_matches('/').to_string())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_of_the_own_suite_is_taken() {
        let targets = "http://a.example/apt/\tcloud-bookworm\tmain\nhttp://s.example/sec/\tbookworm-security\tmain\n\
            http://c.example/contrib/\tbookworm\tcontrib\nhttp://d.example/debian/\tbookworm\tmain\n";
        assert_eq!(choose(targets, &["bookworm", "stable"]).as_deref(), Some("http://d.example/debian"));
        assert_eq!(choose(targets, &["bookworm-security"]).as_deref(), Some("http://s.example/sec"));
        assert_eq!(choose(targets, &["trixie", "stable"]), None);
        let stable = "http://d.example/debian/\tstable\tmain\n";
        assert_eq!(choose(stable, &["forky", "stable"]).as_deref(), Some("http://d.example/debian"));
    }

    #[test]
    fn the_codename_is_read() {
        assert_eq!(codename("ID=debian\nVERSION_CODENAME=bookworm\n").as_deref(), Some("bookworm"));
        assert_eq!(codename("VERSION_CODENAME=\"noble\"\n").as_deref(), Some("noble"));
        assert_eq!(codename("ID=debian\n"), None);
    }
}
