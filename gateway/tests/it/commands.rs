//! The command line, run as its users run it.

use crate::harness::Fixture;
use std::process::{Command, Output};

fn pons(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pons"));
    command.args(arguments).env_remove("PONS_CONFIG").env_remove("PONS_STATE_DIR");
    command.output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn a_key_is_created_listed_and_revoked_without_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state").display().to_string();
    let created = stdout(&pons(&["key", "create", "--tenant", "team", "--state-dir", &state]));
    let key = created.lines().last().unwrap();
    assert!(key.starts_with("sk-pons-") && key.len() == 72, "{created}");
    let list = stdout(&pons(&["key", "list", "--state-dir", &state]));
    assert!(list.contains("team") && !list.contains(key), "{list}");
    let id = list.lines().nth(1).unwrap().split_whitespace().next().unwrap();
    assert!(stdout(&pons(&["key", "revoke", id, "--state-dir", &state])).contains(id));
    let unknown = pons(&["key", "revoke", "key_none", "--state-dir", &state]);
    assert!(!unknown.status.success());
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("key_none"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_commands_work_through_a_running_server() {
    let fixture = Fixture::start().await;
    let state = fixture.dir.path().join("state").display().to_string();
    let run = async |arguments: &[&str]| {
        let arguments: Vec<String> = arguments
            .iter()
            .map(|a| (*a).to_owned())
            .chain(["--state-dir".to_owned(), state.clone()])
            .collect();
        tokio::task::spawn_blocking(move || pons(&arguments.iter().map(String::as_str).collect::<Vec<_>>()))
            .await
            .unwrap()
    };
    let created = stdout(&run(&["key", "create", "--tenant", "team"]).await);
    let key = format!("Bearer {}", created.lines().last().unwrap());
    let models = async |key: &str| {
        let headers = [("authorization", key)];
        crate::harness::call(fixture.address(), "GET", "/v1/models", &headers, b"").await.status
    };
    assert_eq!(models(&key).await, 200);
    let list = stdout(&run(&["key", "list"]).await);
    let id = list.lines().nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    stdout(&run(&["key", "revoke", &id]).await);
    assert_eq!(models(&key).await, 401);
    assert!(stdout(&run(&["ledger", "list"]).await).starts_with("time"));
    assert!(stdout(&run(&["ledger", "sum"]).await).starts_with("tenant"));
}

#[test]
fn the_configuration_is_shown_whole_and_its_faults_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pons.toml");
    let path = file.display().to_string();
    std::fs::write(&file, "heartbeat_s = 3\n").unwrap();
    let shown = stdout(&pons(&["config", "show", "--config", &path]));
    for line in [
        "heartbeat_s = 3.0",
        "listen = \"127.0.0.1:8080\"",
        "[[model]]",
        "name = \"smollm2-135m\"",
        "[limits]",
    ] {
        assert!(shown.contains(line), "{line} is missing in {shown}");
    }
    // What is shown can be used as a file.
    std::fs::write(&file, shown).unwrap();
    stdout(&pons(&["config", "check", "--config", &path]));
    std::fs::write(&file, "hartbeat_s = 3\n").unwrap();
    let wrong = pons(&["config", "check", "--config", &path]);
    assert!(!wrong.status.success());
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("hartbeat_s"));
}
