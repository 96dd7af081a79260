//! Regions as a sink: the files are written by way of the ledger, where the code of a region is known.

use std::io;
use std::sync::Arc;

use super::Regions;
use crate::api::options::{Config, DumpDir, Sinks};
use crate::queue::status::Status;
use crate::sink::{Close, Kind, Sink};

/// It has nothing to open.
pub static KIND: Kind = Kind {
    bit: Sinks::REGION,
    word: "region",
    wants: Sinks::GROUPS,
    is_silent: true,
    make: Some(|status, regions| Box::new(RegionSink { status: status.clone(), regions: regions.clone() })),
};

struct RegionSink {
    status: Arc<Status>,
    regions: Arc<Regions>,
}

impl Sink for RegionSink {
    fn open(&mut self, config: &Config) -> Result<(), String> {
        let (DumpDir::Exactly(dir) | DumpDir::CacheBelow(dir)) = &config.dump_dir;
        self.regions.configure(dir.clone(), config.file_mode, config.adopt);
        Ok(())
    }

    fn close(&mut self, how: Close) -> io::Result<()> {
        if how == Close::Remove {
            self.regions.remove_files(&self.status);
        }
        Ok(())
    }
}
