//! `liqo-csi completion`: prints the completion script of a shell.

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use super::{Cli, Outcome};

const EXAMPLES: &str = "\
bash needs its package bash-completion for this, and zsh the directory of the file in $fpath.

Examples:
  liqo-csi completion bash > ~/.local/share/bash-completion/completions/liqo-csi
  liqo-csi completion zsh > ~/.zfunc/_liqo-csi
  liqo-csi completion fish > ~/.config/fish/completions/liqo-csi.fish";

/// Prints the completion script of a shell.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    shell: Shell,
}

pub(super) fn run(args: &Args) -> Outcome {
    print!("{}", String::from_utf8(script(args.shell))?);
    Ok(())
}

/// In memory: `generate` panics if it cannot write, as into a closed pipe.
fn script(shell: Shell) -> Vec<u8> {
    let mut text = Vec::new();
    generate(shell, &mut Cli::command(), "liqo-csi", &mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bash_parses_its_script_and_each_script_has_the_subcommands() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), script(Shell::Bash)).unwrap();
        let parsed = std::process::Command::new("bash")
            .arg("-n")
            .arg(file.path())
            .status()
            .unwrap();
        assert!(parsed.success());
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = String::from_utf8(script(shell)).unwrap();
            for command in Cli::command().get_subcommands() {
                assert!(
                    text.contains(command.get_name()),
                    "{shell}: {}",
                    command.get_name()
                );
            }
        }
    }
}
