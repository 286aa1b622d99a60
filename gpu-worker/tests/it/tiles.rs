//! The brain as the checker of its own machine's tiles.

use std::process::Command;

use pons_gpu_worker::tiles::CHECK_ARGUMENT;
use pons_kernels::amx;

#[test]
fn a_brain_that_is_asked_to_check_its_tiles_says_how_they_are_and_ends() {
    let brain = Command::new(env!("CARGO_BIN_EXE_pons-brain")).arg(CHECK_ARGUMENT).output().unwrap();
    let said = String::from_utf8(brain.stderr).unwrap();
    match amx::present() {
        Ok(()) => assert!(brain.status.success(), "{said}"),
        Err(absent) => {
            assert_eq!(brain.status.code(), Some(1), "{said}");
            assert_eq!(said.trim_end(), absent.to_string());
        }
    }
    assert!(brain.stdout.is_empty());
}
