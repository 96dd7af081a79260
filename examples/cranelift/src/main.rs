//! A just-in-time compiler for the toy language of `examples/hello.toy`, made with Cranelift. The compiler registers its code
//! with libjitsym: names, the unwind tables that Cranelift makes, and source lines.
//!
//!     fn NAME          begins a function
//!         spin N       counts to N
//!         call NAME    calls a function that was defined before
//!
//! Usage: `jitsym-cranelift PROGRAM [SECONDS]`. Runs the function `start` of the program again and again.

mod compiler;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use compiler::Compiler;
use jitsym::{Options, Session};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().context("usage: jitsym-cranelift PROGRAM [SECONDS]")?;
    let seconds = arguments.next().map_or(Ok(2), |text| text.parse()).context("SECONDS is not a number")?;
    // Readers find the source by this absolute path, whatever their current directory is.
    let path = std::fs::canonicalize(path)?;
    let source = std::fs::read_to_string(&path)?;

    // If no session can be opened, the program continues without symbols.
    let session = match Session::open(&Options::default()) {
        Ok(session) => Some(session),
        Err(error) => {
            eprintln!("jitsym-cranelift: {error}");
            None
        }
    };

    let mut compiler = Compiler::new()?;
    let functions = compiler.compile(&source)?;
    compiler.finish()?;
    // The code is now final and at its address, and has not run yet.
    if let Some(session) = &session {
        for function in &functions {
            compiler.register(session, function, path.to_str().context("a path that is not UTF-8")?)?;
        }
    }

    let start = functions.iter().find(|function| function.name == "start").context("no function start")?;
    // SAFETY: the compiler has made a function without arguments and results, and exists as long as this function runs.
    let start = unsafe { std::mem::transmute::<*const u8, extern "C" fn()>(compiler.entry(start)) };
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        start();
    }
    session.map_or(Ok(()), Session::close)?;
    Ok(())
}
