//! Settings are checked once and refused by name.

use clap::{CommandFactory, Parser};

use super::*;

fn resolve(arguments: &[&str]) -> Result<Settings, ConfigError> {
    let base = ["pons-brain", "--model", "m", "--listen", "unix:/run/b.sock"];
    Settings::resolve(Arguments::try_parse_from(base.iter().chain(arguments)).expect("parses"))
}

#[test]
fn the_command_line_is_consistent() {
    Arguments::command().debug_assert();
}

#[test]
fn defaults_leave_only_model_dependent_values_open() {
    let settings = resolve(&[]).expect("defaults are valid");
    assert_eq!(settings.listen, ListenAddress::Unix(PathBuf::from("/run/b.sock")));
    assert!(settings.threads >= 1);
    assert_eq!((settings.kv_bytes, settings.context_tokens, settings.step_tokens), (None, None, None));
    assert_eq!(settings.given(), Given::default(), "everything is left to the measurement");
    assert_eq!(settings.targets(), Targets { ttft_us: 800_000, itl_us: 100_000 });
    assert_eq!(settings.context_for(2048), Ok(2048));
    assert_eq!(settings.kv_format, KvFormat::Bf16);
}

#[test]
fn packed_weights_are_kept_beside_the_model_where_asked_or_nowhere() {
    let packed = |arguments: &[&str]| resolve(arguments).expect("valid").packed;
    assert_eq!(packed(&["--packed-dir", "/d"]), Folder::Given(PathBuf::from("/d")));
    assert_eq!(packed(&["--packed-dir", "/d", "--no-packed-cache"]), Folder::None);
    // Without the environment's own choice, which a developer may have made.
    if std::env::var_os("PONS_PACKED_DIR").is_none() {
        assert!(matches!(packed(&[]), Folder::Beside(_)));
    }
}

#[test]
fn sizes_are_read_with_their_unit() {
    assert_eq!(parse_bytes("2GiB"), Ok(2 << 30));
    assert_eq!(parse_bytes("1.5 MiB"), Ok(3 << 19));
    assert_eq!(parse_bytes("10kB"), Ok(10_000));
    for wrong in ["", "2", "GiB", "-1GiB", "NaNB", "infB", "1e300GiB", "2 gib", "0B"] {
        assert!(parse_bytes(wrong).is_err(), "{wrong} was taken");
    }
}

#[test]
fn the_form_of_the_cache_is_one_of_two() {
    assert_eq!(resolve(&["--kv-format", "int8"]).expect("valid").kv_format, KvFormat::Int8);
    assert!(parse_kv_format("fp8").is_err());
}

#[test]
fn addresses_are_read_by_their_scheme() {
    assert_eq!(parse_listen("tcp:[::1]:0"), Ok(ListenAddress::Tcp("[::1]:0".to_owned())));
    let long = format!("unix:/{}", "x".repeat(200));
    for wrong in ["", "unix:", "tcp:host", "tcp::80", "tcp:host:99999", "http://x", "/run/b.sock", &long] {
        assert!(parse_listen(wrong).is_err(), "{wrong} was taken");
    }
}

#[test]
fn errors_name_the_field_the_value_and_the_remedy() {
    let error = resolve(&["--threads", "0"]).expect_err("no thread can compute");
    assert_eq!(error.to_string(), "--threads is 0: give a number from 1 to 1024");
    let error = resolve(&["--step-tokens", "32", "--max-sequences", "64"])
        .expect_err("64 sequences can't decode in one step");
    assert_eq!(error.to_string(), "--step-tokens is 32: give at least 64, one for each of --max-sequences");
    let error = resolve(&["--context", "4096"]).expect("valid").context_for(2048).expect_err("too long");
    assert!(error.to_string().starts_with("--context is 4096: the model was trained for 2048 tokens"));
    let error =
        resolve(&["--kv-memory", "1kB"]).expect("valid").blocks_for(4096, 16, 256).expect_err("too small");
    assert_eq!((error.field, error.value.as_str()), ("kv-memory", "1000 bytes"));
}

#[test]
fn given_kv_memory_decides_the_number_of_blocks() {
    let settings = resolve(&["--kv-memory", "1MiB"]).expect("valid");
    assert_eq!(settings.blocks_for(4096, 16, 256), Ok(256));
}
