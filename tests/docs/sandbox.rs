//! Where the commands of the documents run.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::perf;
use crate::support::{root, scratch_dir, tool, wait_until, TmpFiles};

/// A directory for the commands of one document. In their path are `jitsym`, and `vm`, which runs `examples/hello.toy` for a
/// while, or is the document's own program; it is also `./vm`.
pub struct Sandbox(PathBuf);

impl Sandbox {
    pub fn new(document: &str, vm: &Path) -> Self {
        let sandbox = Sandbox(scratch_dir(document.replace('/', "-")));
        std::fs::remove_dir_all(&sandbox.0).expect("empty");
        let bin = sandbox.0.join("bin");
        std::fs::create_dir_all(&bin).expect("directory");
        std::fs::write(sandbox.pids(), "").expect("write pids");
        std::os::unix::fs::symlink(tool(), bin.join("jitsym")).expect("link");
        let script = format!(
            "#!/bin/sh\necho $$ >>'{}'\nexec '{}' '{}' $VM_SECONDS\n",
            sandbox.pids().display(),
            vm.display(),
            root().join("examples/hello.toy").display()
        );
        std::fs::write(bin.join("vm"), script).expect("write vm");
        std::fs::set_permissions(bin.join("vm"), PermissionsExt::from_mode(0o755)).expect("executable");
        std::os::unix::fs::symlink("bin/vm", sandbox.0.join("vm")).expect("link");
        sandbox
    }

    fn pids(&self) -> PathBuf {
        self.0.join("pids")
    }

    pub fn shell(&self, commands: &str) -> Command {
        let mut shell = perf::command("sh");
        // What runs in the background would do so for ever, and write its files again when they have been removed. What `tail`
        // waits for would too: it is the first process of a container, which only signal 9 ends.
        let waits = "wait() { kill ${!-} 2>/dev/null || :; command wait || :; }\ntrap wait EXIT
            tail() { if [ \"$1\" = --pid ]; then kill -9 \"$2\"; fi; command tail \"$@\"; }\n";
        // What runs in the background is there until the last command has ended.
        shell.env("VM_SECONDS", if commands.contains("vm &") { "1000000" } else { "0.3" });
        let commands = format!("{waits}{commands}");
        shell.args(["-euc", &commands]).current_dir(&self.0).env("HOME", &self.0);
        let path = std::env::var("PATH").expect("PATH");
        shell.env("PATH", format!("{}:{path}", self.0.join("bin").display()));
        shell
    }
}

impl Drop for Sandbox {
    /// Reports may need the files of the processes until the last block.
    fn drop(&mut self) {
        let pids = std::fs::read_to_string(self.pids()).unwrap_or_default();
        pids.lines().filter_map(|pid| pid.parse().ok()).for_each(|pid| drop(TmpFiles(pid)));
    }
}

/// The toy in a pid namespace and with a `/tmp` of its own, until it is ended.
pub struct Container {
    unshare: Child,
    /// Its pid out here.
    pub pid: u32,
}

impl Container {
    pub fn new(toy: &Path) -> Self {
        // Both files may lie in the /tmp that is hidden.
        let script = "exec 8<\"$1\" 9<\"$0\"; mount -t tmpfs none /tmp; cat <&8 >/tmp/hello.toy
            exec /proc/self/fd/9 /tmp/hello.toy 1000000";
        let mut unshare = perf::command("unshare");
        unshare.args(["--pid", "--fork", "--kill-child", "--mount", "sh", "-euc", script]).arg(toy);
        let unshare = unshare.arg(root().join("examples/hello.toy")).spawn().expect("start unshare");
        let mut container = Container { pid: 0, unshare };
        let children = format!("/proc/{0}/task/{0}/children", container.unshare.id());
        wait_until("files in the container", || {
            let child = std::fs::read_to_string(&children).unwrap_or_default();
            container.pid = child.trim().parse().unwrap_or(0);
            Path::new(&format!("/proc/{}/root/tmp/perf-1.map", container.pid)).exists()
        });
        container
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // The process inside goes with it.
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
        drop(TmpFiles(self.pid));
    }
}
