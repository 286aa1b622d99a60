//! Tests of the configuration: every fault is named, every default is shown.

use super::*;

fn load_text(text: &str) -> Result<ResolvedConfig, ConfigError> {
    let overrides = Overrides { state_dir: Some(PathBuf::from("/state")), ..Overrides::default() };
    resolve(parse(Path::new("pons.toml"), text)?, overrides)
}

fn fault(text: &str) -> String {
    load_text(text).unwrap_err().to_string()
}

#[test]
fn nothing_configured_serves_the_default_model_on_loopback() {
    let config = load_text("").unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
    assert_eq!((config.models.len(), config.models[0].name.as_str()), (1, DEFAULT_MODEL));
    assert_eq!((config.heartbeat_s, config.limits.body_bytes), (15.0, 32 << 20));
}

#[test]
fn what_is_shown_is_read_back_as_the_same() {
    let text = "heartbeat_s = 7\nlog_format = \"json\"\n[limits]\nin_flight = 9\n[[model]]\nname = \"a/b:c\"\npath = \"/m.gguf\"\n\
                brain = \"tcp:10.0.0.5:7070\"\nprice_output = 12\nkv_memory = \"2GiB\"\n";
    let config = load_text(text).unwrap();
    let shown = toml::to_string(&config).unwrap();
    assert_eq!(load_text(&shown).unwrap(), config, "{shown}");
}

#[test]
fn an_unknown_field_is_an_error_wherever_it_stands() {
    for (text, field) in [
        ("lissten = \"x\"", "lissten"),
        ("[limits]\nbody = 1", "body"),
        ("[timeouts]\nfirst_s = 1", "first_s"),
        ("[[model]]\nname = \"m\"\ncontxt = 1", "contxt"),
    ] {
        assert!(fault(text).contains(field), "{}", fault(text));
    }
}

#[test]
fn a_value_out_of_range_is_named_with_its_remedy() {
    for (text, field, remedy) in [
        ("listen = \"localhost\"", "listen", "an address and a port"),
        ("heartbeat_s = 0", "heartbeat_s", "between 0.05"),
        ("drain_s = -1", "drain_s", "between 0"),
        ("drain_s = nan", "drain_s", "between 0"),
        ("limits.in_flight = 0", "limits.in_flight", "between 1"),
        ("timeouts.total_s = 1e12", "timeouts.total_s", "604800"),
        ("[[model]]\nname = \"a b\"", "model[0].name", "without spaces"),
        ("[[model]]\nthreads = 1", "model[0].name", "a path, or both"),
        ("[[model]]\nname = \"a\"\nbrain = \"http://x\"", "model[0].brain", "unix:PATH"),
        ("[[model]]\nname = \"a\"\ncontext = 0", "model[0].context", "at least 1"),
        ("[[model]]\nname = \"a\"\npacked_dir = \"\"", "model[0].packed_dir", "leave it out"),
        ("[[model]]\nname = \"a\"\n[[model]]\nname = \"a\"", "model[1].name", "its own"),
    ] {
        let message = fault(text);
        assert!(message.contains(field) && message.contains(remedy), "{message}");
    }
}

#[test]
fn the_command_line_wins_and_a_path_names_its_model() {
    let overrides = Overrides {
        listen: Some("[::1]:9".to_owned()),
        models: vec!["/models/Qwen2.5-x.gguf".to_owned(), "./dir/tiny".to_owned(), "smollm2-135m".to_owned()],
        state_dir: Some(PathBuf::from("/state")),
        log: None,
    };
    let raw = parse(Path::new("pons.toml"), "listen = \"127.0.0.1:1\"\n[[model]]\nname = \"x\"").unwrap();
    let config = resolve(raw, overrides).unwrap();
    assert_eq!(config.listen.to_string(), "[::1]:9");
    let models: Vec<(&str, &str)> =
        config.models.iter().map(|model| (model.name.as_str(), model.path.as_str())).collect();
    assert_eq!(
        models,
        [("Qwen2.5-x", "/models/Qwen2.5-x.gguf"), ("tiny", "./dir/tiny"), ("smollm2-135m", "smollm2-135m")]
    );
}

#[test]
fn prices_are_integers_rounded_up_and_never_overflow() {
    let prices = Prices { prompt: 150_000, cached: 15_000, output: 600_000 };
    assert_eq!(prices.of(1_000_000, 0, 0), 150_000);
    assert_eq!(prices.of(1000, 400, 10), (600 * 150_000 + 400 * 15_000 + 10 * 600_000) / 1_000_000);
    assert_eq!(prices.of(1, 0, 0), 1);
    assert_eq!(prices.of(0, 0, 0), 0);
    let dear = Prices { prompt: u64::MAX, cached: u64::MAX, output: u64::MAX };
    assert_eq!(dear.of(u64::MAX, 0, u64::MAX), u64::MAX);
}
