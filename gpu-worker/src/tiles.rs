//! Whether this brain uses the processor's tiles (AMX). The rule: only after a child process, which may crash, has
//! compared them with their emulation; whatever goes wrong there costs speed and nothing else.

use std::io::{self, Read, Write};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pons_kernels::dispatch::ISA_VARIABLE;
use pons_kernels::{Isa, amx};

/// The first argument of a brain that is only to check the tiles. It is no option, so that `--help` does not show it.
pub const CHECK_ARGUMENT: &str = "check-tiles-and-exit";

/// Time that a check gets.
const CHECK_LIMIT: Duration = Duration::from_secs(2);
/// How often a check is looked for.
const CHECK_POLL: Duration = Duration::from_millis(5);
/// Bytes of what a failed check says that are logged.
const MOST_SAID_BYTES: u64 = 400;

/// Why tiles that are present are not used.
#[derive(Debug, thiserror::Error)]
enum Doubt {
    #[error("the check can't be started: {0}")]
    Start(#[source] io::Error),
    #[error("the check can't be waited for: {0}")]
    Wait(#[source] io::Error),
    #[error("the check ended with {status}, saying '{said}'")]
    Failed { status: ExitStatus, said: String },
    #[error("the check took longer than {} ms", .0.as_millis())]
    Late(Duration),
}

/// What the child does: success is a passed check; else the reason is on the standard error.
pub fn check() -> ExitCode {
    match amx::self_check() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nowhere else to say it if this fails; the status says enough.
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

/// Decides about tiles for this process, before it loads a model. Logs one line where there are tiles.
pub fn settle() {
    let setting = std::env::var(ISA_VARIABLE).unwrap_or_default();
    if !wanted(&setting) {
        tracing::debug!(setting, "another instruction set than tiles is asked for");
        return;
    }
    if let Err(reason) = amx::present() {
        tracing::debug!(%reason, "no tiles");
        return;
    }
    let check = std::env::current_exe().map_err(Doubt::Start).and_then(|program| {
        let mut command = Command::new(program);
        command.arg(CHECK_ARGUMENT);
        outcome(&mut command, CHECK_LIMIT)
    });
    match check {
        Ok(()) => {
            amx::trust();
            tracing::info!("the processor's tiles (AMX) passed their check; they multiply quantised weights");
        }
        Err(doubt) => {
            tracing::warn!(%doubt, "the processor's tiles (AMX) are not used; AVX-512 is");
        }
    }
}

/// Whether a setting of the instruction set leaves tiles to be used.
fn wanted(setting: &str) -> bool {
    setting.is_empty() || setting == Isa::Amx.name()
}

/// Runs a check to its end, which comes within about `limit`.
fn outcome(command: &mut Command, limit: Duration) -> Result<(), Doubt> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(Doubt::Start)?;
    match wait(&mut child, limit) {
        Ok(Some(status)) if status.success() => Ok(()),
        Ok(Some(status)) => Err(Doubt::Failed { status, said: said(&mut child) }),
        Ok(None) => Err(Doubt::Late(limit)),
        Err(error) => Err(Doubt::Wait(error)),
    }
}

/// The child's status, or none once it had to be killed.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if began.elapsed() >= limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(CHECK_POLL);
    }
}

/// The start of what a child that has ended left on its standard error, on one line.
fn said(child: &mut Child) -> String {
    let mut bytes = Vec::new();
    if let Some(from) = child.stderr.take() {
        // What can't be read is not said.
        let _ = from.take(MOST_SAID_BYTES).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Far more than the shell needs to start, and far less than a test may hang.
    const PATIENT: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_check_that_ends_well_is_trusted() {
        assert!(outcome(&mut shell("exit 0"), PATIENT).is_ok());
    }

    #[test]
    fn a_check_that_fails_is_quoted_on_one_line() {
        let doubt = outcome(&mut shell("echo 'sum 5'; echo 'is\n 7' >&2; exit 3"), PATIENT).unwrap_err();
        let text = doubt.to_string();
        assert!(
            text.contains("exit status: 3") && text.contains("'is 7'") && !text.contains("sum 5"),
            "{text}"
        );
    }

    #[test]
    fn a_check_that_crashes_is_doubted_by_its_signal() {
        let doubt = outcome(&mut shell("kill -ILL $$"), PATIENT).unwrap_err();
        assert!(doubt.to_string().contains("SIGILL"), "{doubt}");
    }

    #[test]
    fn a_check_that_hangs_is_killed() {
        let began = Instant::now();
        let doubt = outcome(&mut shell("exec sleep 600"), Duration::from_millis(20)).unwrap_err();
        assert!(matches!(doubt, Doubt::Late(_)) && doubt.to_string().contains("20 ms"), "{doubt}");
        assert!(began.elapsed() < PATIENT);
    }

    #[test]
    fn a_check_that_says_much_is_cut_short() {
        let doubt = outcome(&mut shell("printf '%5000s' x | tr ' ' x >&2; exit 1"), PATIENT).unwrap_err();
        let Doubt::Failed { said, .. } = doubt else { panic!("{doubt} is another reason") };
        assert_eq!(said.len() as u64, MOST_SAID_BYTES);
    }

    #[test]
    fn a_program_that_is_not_there_is_no_check() {
        let doubt = outcome(&mut Command::new("/no/such/program"), PATIENT).unwrap_err();
        assert!(matches!(doubt, Doubt::Start(_)), "{doubt}");
    }

    #[test]
    fn tiles_are_checked_unless_another_set_is_asked_for() {
        assert!(wanted("") && wanted("amx"));
        assert!(!wanted("avx512-vnni") && !wanted("portable") && !wanted("amx2"));
    }
}
