//! The command line as a whole: its consistency, the examples in the help texts, and the commands on the
//! pages that new users read first.

use clap::{Command, CommandFactory, Parser};

use super::Cli;

/// The processes of the driver, which no user starts, and what only test builds have.
const NOT_FOR_USERS: [&str; 6] = ["controller", "node", "fabric", "relay", "mover", "crash-points"];

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn each_command_for_users_has_examples_and_they_parse() {
    let cli = Cli::command();
    for command in cli.get_subcommands() {
        if !NOT_FOR_USERS.contains(&command.get_name()) {
            check_examples(command, &[cli.get_name()]);
        }
    }
}

#[test]
fn the_commands_of_the_first_pages_parse() {
    for page in ["README.md", "docs/gitops.md", "docs/remote/two-clusters.md"] {
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
