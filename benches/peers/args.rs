//! The command line.

use std::path::PathBuf;

use crate::contenders::Kind;
use crate::pin::Pin;
use crate::plot;
use crate::task::Mode;

pub const USAGE: &str = "\
cargo bench -- [MODES] [OPTIONS]
MODES                latency bursts saturated rate start; all of them if none is named
--rounds N           rounds of each comparison (9)
--sizes A,B          bytes of code, in place of each mode's own
--threads A,B        threads, in place of each mode's own
--contenders A,B     of cpython v8 llvm wasmtime luajit moarvm channel bulk; memcpy, bare, crossed and jitsym always take part
--quick              3 rounds, a quarter of the calls
--pin same|apart     caller and background thread on one processor, or on two
--dir DIR            where the files go (/dev/shm; /tmp to include a real file system)
--plot FILE          also draw the distribution at 512 bytes, as SVG; needs latency and bursts
--library FILE       a libjitsym.so to measure in place of the one of this source tree";

/// The effort that shows that everything works, and measures nothing.
pub const SMOKE: usize = 2;

/// What was asked for.
pub struct Args {
    pub modes: Vec<Mode>,
    pub rounds: usize,
    pub sizes: Option<Vec<usize>>,
    pub threads: Option<Vec<usize>>,
    pub contenders: Option<Vec<Kind>>,
    /// Percentage of the usual number of calls.
    pub effort: usize,
    pub pin: Option<Pin>,
    pub dir: PathBuf,
    pub library: Option<PathBuf>,
    pub plot: Option<PathBuf>,
}

impl Args {
    pub fn parse(words: &[String]) -> Result<Args, String> {
        let mut args = Args {
            modes: Vec::new(),
            rounds: 9,
            sizes: None,
            threads: None,
            contenders: None,
            effort: 100,
            pin: None,
            dir: "/dev/shm".into(),
            library: None,
            plot: None,
        };
        // Without that word it is `cargo test --benches` that runs this, to see that it works.
        if !words.iter().any(|word| word == "--bench") {
            (args.rounds, args.effort) = (1, SMOKE);
        }
        let mut words = words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word {
                "--bench" => {}
                "--help" => return Err("What registering costs, next to other ways.".into()),
                "--quick" => (args.rounds, args.effort) = (3, 25),
                "--rounds" => args.rounds = number(value()?)?,
                "--sizes" => args.sizes = Some(list(value()?, number)?),
                "--threads" => args.threads = Some(list(value()?, number)?),
                "--contenders" => args.contenders = Some(list(value()?, contender)?),
                "--pin" => args.pin = Some(Pin::parse(value()?)?),
                "--dir" => args.dir = value()?.into(),
                "--plot" => args.plot = Some(value()?.into()),
                "--library" => args.library = Some(value()?.into()),
                _ => args.modes.push(Mode::parse(word).ok_or(format!("{word}: not known"))?),
            }
        }
        if args.modes.is_empty() {
            args.modes = Mode::ALL.into();
        }
        if args.plot.is_some() && !plot::is_measured(&args) {
            return Err("--plot needs latency or bursts at 512 bytes and 1 or 8 threads".into());
        }
        Ok(args)
    }
}

fn list<T>(words: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    words.split(',').map(parse).collect()
}

fn number(word: &str) -> Result<usize, String> {
    word.parse().ok().filter(|&number| number > 0).ok_or(format!("{word}: not a number above 0"))
}

fn contender(word: &str) -> Result<Kind, String> {
    Kind::parse(word).ok_or(format!("{word}: no such contender"))
}
