//! Makes the manual page and the shell completions in `man` from the description of the command line.
//!
//! With `JITSYM_BLESS=1` in the environment, the test writes these files.

use std::collections::BTreeMap;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::{generate, Shell};
use clap_mangen::Man;

use crate::args::{Cli, EXIT_CODES};

/// The text of the manual page that is not generated, with placeholders for the rest.
const PAGE: &str = include_str!("../../../../man/jitsym.1.in");

fn page() -> String {
    let (mut synopsis, mut commands) = (String::new(), String::new());
    let mut cli = Cli::command();
    cli.build();
    for command in cli.get_subcommands().filter(|command| command.get_name() != "help") {
        let usage = command.clone().render_usage().to_string();
        let usage = usage.trim_start_matches("Usage: ").replace('-', "\\-");
        let (program, rest) = usage.split_once(command.get_name()).expect("the command");
        synopsis += &format!("\\fB{program}{}\\fR{rest}\n", command.get_name());
        let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
        commands += &format!(".SS {}\n{}\n", command.get_name(), paragraphs(&about));
        commands += &options(command);
        if let Some(example) = command.get_after_help() {
            let example = example.to_string().replace('-', "\\-");
            let (heading, example) = example.split_once('\n').expect("an example");
            commands += &format!(".PP\n{heading}\n.PP\n.nf\n{example}\n.fi\n");
        }
    }
    let codes: String = EXIT_CODES.iter().map(|(code, text)| format!(".TP\n.B {code}\n{}\n", spans(text))).collect();
    let filled = [("@SYNOPSIS@\n", synopsis), ("@COMMANDS@\n", commands), ("@EXIT_CODES@\n", codes)];
    let page = filled.into_iter().fold(PAGE.to_owned(), |page, (place, text)| page.replace(place, &text));
    page.replace("@VERSION@", env!("CARGO_PKG_VERSION"))
}

/// The options and arguments, without `--help`, which each command has.
fn options(command: &Command) -> String {
    let command = command.clone().mut_args(|argument| {
        let is_hidden = argument.get_id() == "help" || argument.is_hide_set();
        argument.hide(is_hidden)
    });
    if command.get_arguments().all(|argument| argument.is_hide_set()) {
        return String::new();
    }
    let mut text = Vec::new();
    Man::new(command).render_options_section(&mut text).expect("written to memory");
    let text = String::from_utf8(text).expect("UTF-8");
    // The requests before the heading define strings, and the heading would end the section.
    let (_, text) = text.split_once(".SH OPTIONS\n").expect("the heading");
    // One of these strings is the apostrophe.
    text.replace("\\*(Aq", "\\(aq")
}

fn paragraphs(text: &str) -> String {
    spans(&text.replace("\n\n", ".\n.PP\n").replace(". ", ".\n"))
}

/// Text between backquotes becomes bold.
fn spans(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts.map(|(at, part)| if at % 2 == 0 { part.into() } else { format!("\\fB{part}\\fR") }).collect()
}

/// All generated files, by their names in `man`.
fn files() -> BTreeMap<&'static str, String> {
    let completions = |shell| {
        let mut text = Vec::new();
        generate(shell, &mut Cli::command(), "jitsym", &mut text);
        let text = String::from_utf8(text).expect("UTF-8");
        text.lines().map(|line| line.trim_end().to_owned() + "\n").collect::<String>()
    };
    BTreeMap::from([
        ("jitsym.1", page()),
        ("completions/jitsym.bash", completions(Shell::Bash)),
        ("completions/_jitsym", completions(Shell::Zsh)),
        ("completions/jitsym.fish", completions(Shell::Fish)),
    ])
}

#[test]
fn generated_files_are_current() {
    let man = Path::new(env!("CARGO_MANIFEST_DIR")).join("../man");
    for (name, text) in files() {
        let path = man.join(name);
        if std::env::var_os("JITSYM_BLESS").is_some() {
            std::fs::create_dir_all(path.parent().expect("directory")).expect("make the directory");
            std::fs::write(&path, &text).expect("write the file");
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(there == text, "man/{name} is not what the program says: JITSYM_BLESS=1 cargo test -p jitsym-tool");
    }
}

/// The description does not contradict itself.
#[test]
fn description() {
    Cli::command().debug_assert();
    for command in Cli::command().get_subcommands().filter(|command| command.get_name() != "version") {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let example =
            help.strip_prefix("Example:\n  ").unwrap_or_else(|| panic!("{} has no example", command.get_name()));
        assert!(example.starts_with(&format!("jitsym {} ", command.get_name())), "{example}");
    }
}

/// The shells accept the completions, and complete words.
#[test]
fn shells_complete() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../man/completions");
    let shell = |program: &str, arguments: &[&str]| {
        let mut command = std::process::Command::new(program);
        let output =
            command.current_dir(&dir).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && output.stderr.is_empty(), "{program}: {output:?}");
        printed
    };
    let script = "source ./jitsym.bash; COMP_WORDS=(jitsym check --al); COMP_CWORD=2; _jitsym jitsym --al check; echo ${COMPREPLY[*]}";
    assert_eq!(shell("bash", &["--norc", "-c", script]), "--all --allow\n");
    let script = "source ./jitsym.fish; complete -C 'jitsym cle'";
    assert!(shell("fish", &["--no-config", "-c", script]).starts_with("clean\t"));
    shell("zsh", &["-f", "-n", "_jitsym"]);
}
