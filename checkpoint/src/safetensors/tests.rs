use proptest::prelude::*;

use super::*;

fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

const VALID: &str = r#"{"__metadata__":{"format":"pt"},
 "m":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
 "v":{"dtype":"BF16","shape":[2],"data_offsets":[24,28]},
 "h":{"dtype":"F16","shape":[1],"data_offsets":[28,30]},
 "i":{"dtype":"I64","shape":[1],"data_offsets":[30,38]}}"#;

fn valid() -> Vec<u8> {
    file(VALID, &(0..38).collect::<Vec<u8>>())
}

fn refusal(header: &str, data: &[u8]) -> String {
    Header::parse(&file(header, data), "f").unwrap_err().to_string()
}

#[test]
fn a_valid_file_gives_back_its_tensors() {
    let bytes = valid();
    let header = Header::parse(&bytes, "f").unwrap();
    let mut names: Vec<&str> = header.names().collect();
    names.sort_unstable();
    assert_eq!(names, ["h", "i", "m", "v"]);
    let m = header.tensor(&bytes, "m").unwrap();
    assert_eq!((m.rows, m.cols, m.dtype, m.data.len()), (2, 3, Dtype::F32, 24));
    let v = header.tensor(&bytes, "v").unwrap();
    assert_eq!((v.rows, v.cols, v.dtype, v.data), (1, 2, Dtype::Bf16, &[24, 25, 26, 27][..]));
    assert_eq!(header.tensor(&bytes, "h").unwrap().dtype, Dtype::F16);
    let error = header.tensor(&bytes, "i").unwrap_err().to_string();
    assert!(error.contains("`i`") && error.contains("I64"), "{error}");
    assert!(header.tensor(&bytes, "x").unwrap_err().to_string().contains("`x` is missing"));
}

#[test]
fn hostile_lengths_are_refused_before_parsing() {
    for len in [u64::MAX, u64::MAX - 7, 1 << 63, 100_000_000, 1_000, 3] {
        let bytes = [&len.to_le_bytes()[..], b"{}"].concat();
        let error = Header::parse(&bytes, "part.safetensors").unwrap_err().to_string();
        assert!(error.contains("part.safetensors") && error.contains(&len.to_string()), "{error}");
    }
    assert!(Header::parse(b"short", "f").unwrap_err().to_string().contains("5 bytes"));
}

#[test]
fn headers_that_contradict_themselves_are_refused() {
    let data = [0; 32];
    let one = |entry: &str| refusal(&format!("{{\"a\":{entry}}}"), &data);
    assert!(one(r#"{"dtype":"F32","shape":[9],"data_offsets":[0,36]}"#).contains("outside"));
    assert!(one(r#"{"dtype":"F32","shape":[1],"data_offsets":[8,4]}"#).contains("outside"));
    assert!(one(r#"{"dtype":"F32","shape":[3],"data_offsets":[0,8]}"#).contains("`a`"));
    assert!(one(r#"{"dtype":"F32","shape":[9223372036854775808,2],"data_offsets":[0,0]}"#).contains("`a`"));
    assert!(one(r#"{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}"#).contains("header"));
    assert!(one(r#"{"dtype":"F32","shape":[1],"data_offsets":[0]}"#).contains("header"));
    assert!(
        one(r#"{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}"#).contains("9 dimensions")
    );
    assert!(refusal("[]", &data).contains("object of tensors"));
    assert!(refusal(&"[".repeat(100_000), &data).contains("header"));
    assert!(refusal(&format!("{{\"__metadata__\":{}", "[".repeat(100_000)), &data).contains("header"));
}

#[test]
fn duplicate_and_overlapping_tensors_are_refused() {
    let entry = |name: &str, from: u32, to: u32| {
        format!(
            "\"{name}\":{{\"dtype\":\"F32\",\"shape\":[{}],\"data_offsets\":[{from},{to}]}}",
            (to - from) / 4
        )
    };
    let twice = format!("{{{},{}}}", entry("a", 0, 4), entry("a", 4, 8));
    assert!(refusal(&twice, &[0; 8]).contains("twice"));
    let overlap = format!("{{{},{}}}", entry("a", 0, 8), entry("b", 4, 12));
    assert!(refusal(&overlap, &[0; 12]).contains("`a` and `b` overlap"));
    let apart = format!("{{{},{}}}", entry("a", 4, 12), entry("b", 0, 4));
    Header::parse(&file(&apart, &[0; 12]), "f").unwrap();
}

#[test]
fn a_tensor_of_three_dimensions_is_refused_when_asked_for() {
    let bytes = file(r#"{"a":{"dtype":"F16","shape":[1,2,1],"data_offsets":[0,4]}}"#, &[0; 4]);
    let header = Header::parse(&bytes, "f").unwrap();
    let error = header.tensor(&bytes, "a").unwrap_err().to_string();
    assert!(error.contains("[1, 2, 1]"), "{error}");
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
    let whole = valid();
    for len in 0..whole.len() {
        assert!(Header::parse(&whole[..len], "f").is_err(), "cut at {len}");
    }
}

fn exercise(bytes: &[u8]) {
    if let Ok(header) = Header::parse(bytes, "f") {
        for name in header.names() {
            if let Ok(tensor) = header.tensor(bytes, name) {
                assert_eq!(tensor.to_f32().len(), tensor.rows * tensor.cols);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn flipped_bytes_never_panic(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = valid();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        exercise(&bytes);
    }

    #[test]
    fn replaced_numbers_never_panic(which in 0_usize..8, number in any::<u64>()) {
        let found: Vec<(usize, &str)> = VALID.match_indices(|c: char| c.is_ascii_digit()).collect();
        let (at, digit) = found[which * found.len() / 8];
        let header = format!("{}{number}{}", &VALID[..at], &VALID[at + digit.len()..]);
        exercise(&file(&header, &[0; 38]));
    }
}
