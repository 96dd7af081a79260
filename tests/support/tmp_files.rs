//! What a process that was profiled leaves behind.

/// Removes a process's files when dropped. In /tmp they are map, dump, regions, and the objects that `perf inject` wrote, also in directories; in /dev/shm
/// there is the spool of a process that has ended without its exit handlers.
pub struct TmpFiles(pub u32);

impl Drop for TmpFiles {
    fn drop(&mut self) {
        let pid = self.0;
        let _ = std::fs::remove_file(format!("/tmp/perf-{pid}.map"));
        // The source of the guest, where a program has made one up.
        let _ = std::fs::remove_file(format!("/tmp/matrix-{pid}.toy"));
        let (prefix, region, dump) = (format!("jitted-{pid}-"), format!("jit-{pid}-"), format!("{pid}.dump"));
        for entry in std::fs::read_dir("/tmp").into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            // Where several libraries write, the number has zeros before it.
            let is_dump = name.strip_prefix("jit-").is_some_and(|name| name.trim_start_matches('0') == dump);
            if is_dump || name.starts_with(&prefix) || name.starts_with(&region) {
                let _ = std::fs::remove_file(entry.path());
                // One that `jitsym record` has made for objects.
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
        let spool = format!("jitsym-{pid}-");
        for entry in std::fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&spool) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}
