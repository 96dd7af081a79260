//! The main function of the writer's thread.

use crate::api::options::Config;
use crate::queue::oneshot::{Give, Take};
use crate::sys::{descriptor_table, host_fds, panic_guard};
use crate::writer::{self, Inheritance, Writer};

/// The arguments of a writer thread. The thread opens all files itself, in a separate descriptor table.
pub struct Begin {
    pub writer: Box<Writer>,
    pub config: Config,
    /// Whether to recover the files of dead processes first.
    pub recover: bool,
    /// The channel through which the thread returns the writer after use.
    pub home: Give<Box<Writer>>,
    /// The channel through which the thread reports whether a sink could be opened.
    pub opened: Give<bool>,
    /// In a forked child: the channel that delivers the inherited state, and the channel on which the thread reports that the
    /// writer has taken over this state.
    pub inherited: Option<(Take<Inheritance>, Give<()>)>,
}

impl Begin {
    /// Runs on the new thread.
    pub fn run(self) {
        panic_guard::enter_for_good();
        descriptor_table::separate();
        let (host, shared) = (self.writer.host, self.writer.shared);
        if panic_guard::guarded(|_| self.run_writer()).is_none() {
            writer::fail(host, shared);
        }
    }

    fn run_writer(self) {
        let Begin { mut writer, config, recover, home, opened, inherited } = self;
        if !writer.start(&config, recover) {
            host_fds::stop();
            home.give(writer);
            opened.give(false);
            return;
        }
        if inherited.is_none() {
            writer.announce();
        }
        if !opened.give(true) {
            return writer.end_unwanted(home);
        }
        if let Some((inherited, ready)) = inherited {
            let Some(inheritance) = inherited.wait() else { return writer.end_unwanted(home) };
            writer.inherit(inheritance);
            writer.announce();
            ready.give(());
        }
        writer.run(home);
    }
}
