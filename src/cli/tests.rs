//! The command line as a whole: its consistency, the examples in the help texts, and the commands on the
//! pages that new users read first.

use std::{path::Path, process::ExitCode};

use clap::{Command, CommandFactory, Parser};

use super::{Cli, USAGE, explain};

/// The processes of the driver, which no user starts, and what only test builds have.
const NOT_FOR_USERS: [&str; 6] = ["controller", "node", "fabric", "relay", "mover", "crash-points"];

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

/// Scripts distinguish it from a refusal.
#[test]
fn wrong_usage_has_an_exit_code_of_its_own() {
    for (line, code) in [
        (&["liqo-csi", "disconnect"][..], ExitCode::from(USAGE)),
        (
            &["liqo-csi", "move", "volume", "--no-such"],
            ExitCode::from(USAGE),
        ),
        (&["liqo-csi", "--version"], ExitCode::SUCCESS),
        (&["liqo-csi", "move", "--help"], ExitCode::SUCCESS),
    ] {
        let error = Cli::try_parse_from(line).err().unwrap();
        assert_eq!(explain(&error), code, "{line:?}");
    }
}

#[test]
fn each_command_for_users_has_examples_and_they_parse() {
    let cli = Cli::command();
    for command in cli.get_subcommands() {
        let is_for_users = !NOT_FOR_USERS.contains(&command.get_name());
        if is_for_users {
            check_examples(command, &[cli.get_name()]);
        }
        assert_eq!(command.is_hide_set(), !is_for_users, "{}", command.get_name());
    }
}

#[test]
fn the_commands_of_the_first_pages_parse() {
    for page in [
        "README.md",
        "docs/gitops.md",
        "docs/operations.md",
        "docs/remote/two-clusters.md",
    ] {
        let text = std::fs::read_to_string(format!("{}/{page}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        // The text between each second pair of fences is code.
        let code = text.split("```").skip(1).step_by(2);
        let found: Vec<_> = code.flat_map(str::lines).flat_map(commands).collect();
        assert!(!found.is_empty(), "{page} has no command any more");
        for words in found {
            parse(&words, page);
        }
    }
}

/// Commands that errors, events and `doctor` name have flags that this program knows, and those that it requires
/// where an object is named.
#[test]
fn commands_in_messages_can_be_run() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (cli, mut found) = (Cli::command(), 0);
    for (place, code) in sources(&root.join("src"))
        .into_iter()
        .chain(sources(&root.join("crates")))
    {
        for named in code.split("liqo-csi ").skip(1) {
            let end = named.find(['"', '`', ',', ';', '|', '(', ')', '\n']);
            let mut words = named[..end.unwrap_or(named.len())].split_whitespace().peekable();
            let mut command = &cli;
            while let Some(inner) = words.peek().and_then(|word| command.find_subcommand(*word)) {
                words.next();
                command = inner;
            }
            found += 1;
            check_named(command, &words.collect::<Vec<_>>(), &place);
        }
    }
    assert!(found > 100, "only {found} commands");
}

fn check_named(command: &Command, words: &[&str], place: &str) {
    let flags: Vec<&str> = words.iter().filter_map(|word| word.strip_prefix("--")).collect();
    for flag in &flags {
        let name = flag.split(['=', '.', ':']).next();
        let is_known = command.get_arguments().any(|it| it.get_long() == name);
        assert!(is_known, "{place}: {} has no flag --{flag}", command.get_name());
    }
    let needed: &[&str] = match command.get_name() {
        "connect" | "disconnect" => &["remote-", "local-only"],
        "volume" => &["target-"],
        _ => &[""],
    };
    let names_object = words.first().is_some_and(|word| word.starts_with('{'));
    let is_enough = needed
        .iter()
        .any(|one| one.is_empty() || flags.iter().any(|flag| flag.starts_with(one)));
    assert!(
        is_enough || !names_object,
        "{place}: {} {words:?} is refused",
        command.get_name()
    );
}

/// The sources below a folder with their names: continued lines are one, and comments are left out.
fn sources(folder: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|it| it == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let lines = text.lines().map(str::trim).filter(|line| !line.starts_with("//"));
            let code = lines.map(|line| match line.strip_suffix('\\') {
                Some(begun) => begun.to_owned(),
                None => format!("{line}\n"),
            });
            found.push((path.display().to_string(), code.collect()));
        }
    }
    found
}

/// A command without subcommands has examples of its own.
fn check_examples(command: &Command, parents: &[&str]) {
    let path = [parents, &[command.get_name()]].concat();
    let help = command.get_after_long_help().or(command.get_after_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    let (_, examples) = help.split_once("Examples:\n").unwrap_or_default();
    let examples: Vec<_> = examples.lines().map(commands).collect();
    for found in &examples {
        let [words] = found.as_slice() else {
            panic!("an example of {path:?} is not one command of this program: {found:?}");
        };
        assert!(
            words.iter().zip(&path).all(|(word, part)| word == part),
            "{words:?} is no example of {path:?}"
        );
        parse(words, &path.join(" "));
    }
    assert!(
        !examples.is_empty() || command.has_subcommands(),
        "{path:?} has no examples"
    );
    for inner in command.get_subcommands() {
        check_examples(inner, &path);
    }
}

fn parse(words: &[String], place: &str) {
    if let Err(error) = Cli::try_parse_from(words) {
        panic!("{place}: {words:?}: {error}");
    }
}

/// The words of each command of this program in a line for the shell, without redirections and comments.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut found = vec![Vec::new()];
    let (mut word, mut quote) = (None::<String>, None);
    for char in line.chars().chain(['\n']) {
        match char {
            _ if quote == Some(char) => quote = None,
            _ if quote.is_some() => word.get_or_insert_default().push(char),
            '\'' | '"' => {
                quote = Some(char);
                word.get_or_insert_default();
            }
            '#' if word.is_none() => break,
            ' ' | '\n' | '|' | '&' | ';' | '>' => {
                let last = found.len() - 1;
                found[last].extend(word.take());
                if !char.is_whitespace() {
                    found.push(Vec::new());
                }
            }
            _ => word.get_or_insert_default().push(char),
        }
    }
    found.retain(|words| words.first().is_some_and(|it| it == "liqo-csi"));
    found
}

#[test]
fn commands_are_found_in_lines_for_the_shell() {
    for (line, expected) in [
        (
            "kubectl create namespace a && liqo-csi offload namespace a",
            &["liqo-csi|offload|namespace|a"][..],
        ),
        ("liqo-csi crds | kubectl apply -f -", &["liqo-csi|crds"]),
        ("liqo-csi crds > crds.yaml   # comment", &["liqo-csi|crds"]),
        (
            "liqo-csi a 'b, !c' \"\"; liqo-csi d",
            &["liqo-csi|a|b, !c|", "liqo-csi|d"],
        ),
        ("helm install liqo-csi deploy/chart", &[]),
        ("# liqo-csi a", &[]),
    ] {
        let found: Vec<String> = commands(line).iter().map(|it| it.join("|")).collect();
        assert_eq!(found, expected, "{line}");
    }
}
