//! Where this machine gets its Debian packages from: asked of apt itself, so that every form of its configuration counts.

use std::process::Command;

use anyhow::{bail, Context, Result};

use crate::run;

/// The archive that the machine's own suite comes from. All suites of Debian lie in it.
pub fn mirror() -> Result<String> {
    let release = std::fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let codename = codename(&release).context("/etc/os-release has no VERSION_CODENAME")?;
    let mut indextargets = Command::new("apt-get");
    // Not what apt has fetched so far (a fresh machine has fetched nothing), but what it is told to fetch.
    indextargets.args(["indextargets", "--no-release-info", "--format", "$(REPO_URI)\t$(RELEASE)\t$(COMPONENT)"]);
    let targets = run::stdout(&mut indextargets)?;
    match choose(&targets, &codename) {
        Some(uri) => Ok(uri),
        None => bail!("apt knows no archive with the suite {codename} of Debian; name one with --mirror"),
    }
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

/// From lines of URI, suite and component. A suite that is called otherwise (`bookworm-security`) lies in another archive; so
/// may `stable`, which is looked at last.
fn choose(targets: &str, codename: &str) -> Option<String> {
    let names = [codename, "stable", "testing", "unstable", "sid"];
    names.iter().find_map(|name| {
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
        assert_eq!(choose(targets, "bookworm").as_deref(), Some("http://d.example/debian"));
        assert_eq!(choose(targets, "trixie"), None);
        assert_eq!(
            choose("http://d.example/debian/\tstable\tmain\n", "forky").as_deref(),
            Some("http://d.example/debian")
        );
    }

    #[test]
    fn the_codename_is_read() {
        assert_eq!(codename("ID=debian\nVERSION_CODENAME=bookworm\n").as_deref(), Some("bookworm"));
        assert_eq!(codename("VERSION_CODENAME=\"noble\"\n").as_deref(), Some("noble"));
        assert_eq!(codename("ID=debian\n"), None);
    }
}
