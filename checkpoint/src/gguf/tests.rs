use proptest::prelude::*;

use super::*;
use crate::tensor::Dtype;

/// Builds GGUF bytes; every field can be made wrong on purpose.
#[derive(Clone)]
struct Builder {
    version: u32,
    metadata: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    alignment: usize,
    data: Vec<u8>,
}

fn text(s: &str) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat()
}

fn pair(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(key)[..], &kind.to_le_bytes(), value].concat()
}

fn array(kind: u32, count: u64, items: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &count.to_le_bytes(), items].concat()
}

fn entry(name: &str, dims: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let dims_bytes: Vec<u8> = dims.iter().flat_map(|d| d.to_le_bytes()).collect();
    let n_dims = dims.len() as u32;
    [&text(name)[..], &n_dims.to_le_bytes(), &dims_bytes, &kind.to_le_bytes(), &offset.to_le_bytes()].concat()
}

impl Builder {
    fn new() -> Self {
        Self { version: 3, metadata: Vec::new(), tensors: Vec::new(), alignment: 32, data: Vec::new() }
    }

    /// A file with one value of every kind and three tensors, one of an unknown type.
    fn valid() -> Self {
        let mut b = Self::new();
        b.metadata = vec![
            pair("general.architecture", 8, &text("llama")),
            pair("a.u8", 0, &[200]),
            pair("a.i8", 1, &[0xff]),
            pair("a.u16", 2, &[1, 2]),
            pair("a.i16", 3, &[0xfe, 0xff]),
            pair("a.u32", 4, &7_u32.to_le_bytes()),
            pair("a.i32", 5, &(-7_i32).to_le_bytes()),
            pair("a.f32", 6, &1.5_f32.to_le_bytes()),
            pair("a.bool", 7, &[1]),
            pair("a.u64", 10, &u64::MAX.to_le_bytes()),
            pair("a.i64", 11, &(-1_i64).to_le_bytes()),
            pair("a.f64", 12, &2.5_f64.to_le_bytes()),
            pair("l.strings", 9, &array(8, 2, &[text("x"), text("yz")].concat())),
            pair("l.ints", 9, &array(5, 2, &[1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff])),
            pair("l.floats", 9, &array(6, 1, &0.5_f32.to_le_bytes())),
            pair("l.bools", 9, &array(7, 2, &[0, 1])),
            pair("l.nested", 9, &array(9, 1, &array(0, 2, &[3, 4]))),
        ];
        b.tensors = vec![
            entry("matrix", &[2, 3], 0, 0),
            entry("vector", &[32], 2, 32),
            entry("strange", &[4], 99, 64),
        ];
        b.data = (0..96).collect();
        b
    }

    fn build(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        out.extend(self.metadata.concat());
        out.extend(self.tensors.concat());
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(&self.data);
        out
    }

    fn refusal(&self) -> String {
        Gguf::parse(&self.build()).unwrap_err().to_string()
    }
}

#[test]
fn a_valid_file_gives_back_what_was_written() {
    for version in [2, 3] {
        let bytes = Builder { version, ..Builder::valid() }.build();
        let gguf = Gguf::parse(&bytes).unwrap();
        let meta = gguf.metadata();
        assert_eq!(gguf.version(), version);
        assert_eq!(meta.len(), 17);
        assert_eq!(meta.str("general.architecture"), Some("llama"));
        assert_eq!(meta.u64("a.u8"), Some(200));
        assert_eq!(meta.get("a.i8"), Some(&Value::I8(-1)));
        assert_eq!(meta.u64("a.u16"), Some(0x201));
        assert_eq!(meta.get("a.i16").and_then(Value::as_i64), Some(-2));
        assert_eq!(meta.u64("a.u32"), Some(7));
        assert_eq!(meta.u64("a.i32"), None);
        assert_eq!(meta.get("a.f32").and_then(Value::as_f64), Some(1.5));
        assert_eq!(meta.bool("a.bool"), Some(true));
        assert_eq!(meta.u64("a.u64"), Some(u64::MAX));
        assert_eq!(meta.get("a.f64").and_then(Value::as_f64), Some(2.5));
        assert_eq!(meta.strings("l.strings").unwrap(), ["x", "yz"]);
        assert_eq!(meta.integers("l.ints").unwrap(), [1, -1]);
        assert_eq!(meta.get("l.floats"), Some(&Value::Floats(vec![0.5])));
        assert_eq!(meta.get("l.bools"), Some(&Value::Bools(vec![false, true])));
        assert_eq!(meta.get("l.nested"), Some(&Value::Arrays(vec![Value::Integers(vec![3, 4])])));
        let matrix = gguf.tensor(&bytes, "matrix").unwrap();
        assert_eq!((matrix.rows, matrix.cols, matrix.dtype), (3, 2, Dtype::F32));
        assert_eq!(matrix.data, (0..24).collect::<Vec<u8>>());
        assert_eq!(matrix.row(1), (8..16).collect::<Vec<u8>>());
        let vector = gguf.tensor(&bytes, "vector").unwrap();
        assert_eq!((vector.rows, vector.cols, vector.dtype), (1, 32, Dtype::Q4_0));
        assert_eq!(vector.data, (32..50).collect::<Vec<u8>>());
    }
}

#[test]
fn an_unknown_type_is_an_error_only_when_that_tensor_is_asked_for() {
    let bytes = Builder::valid().build();
    let gguf = Gguf::parse(&bytes).unwrap();
    assert!(gguf.has_tensor("strange"));
    let error = gguf.tensor(&bytes, "strange").unwrap_err().to_string();
    assert!(error.contains("`strange`") && error.contains("type 99"), "{error}");
    let error = gguf.tensor(&bytes, "absent").unwrap_err().to_string();
    assert!(error.contains("`absent` is missing"), "{error}");
}

#[test]
fn another_alignment_is_honoured_and_a_senseless_one_refused() {
    let mut b = Builder::valid();
    b.alignment = 64;
    b.metadata.push(pair("general.alignment", 4, &64_u32.to_le_bytes()));
    b.tensors = vec![entry("vector", &[4], 0, 64)];
    let bytes = b.build();
    let gguf = Gguf::parse(&bytes).unwrap();
    assert_eq!(gguf.tensor(&bytes, "vector").unwrap().data, (64..80).collect::<Vec<u8>>());
    for bad in [0_u32, 3, 1 << 31] {
        b.metadata.pop();
        b.metadata.push(pair("general.alignment", 4, &bad.to_le_bytes()));
        assert!(b.refusal().contains("general.alignment"));
    }
}

#[test]
fn other_magic_versions_and_byte_orders_are_named() {
    let refuse = |bytes: &[u8]| Gguf::parse(bytes).unwrap_err().to_string();
    assert!(refuse(b"").contains("magic"));
    assert!(refuse(b"GGML\x03\0\0\0").contains("does not begin with `GGUF`"));
    assert!(refuse(b"GGUF\x01\0\0\0").contains("version 1 is not supported"));
    assert!(refuse(b"GGUF\x04\0\0\0").contains("version 4 is not supported"));
    assert!(refuse(b"GGUF\0\0\0\x03").contains("big-endian"));
}

#[test]
fn hostile_counts_are_refused_at_once() {
    for count in [u64::MAX, u64::MAX / 2, 1 << 40, 1 << 20, 65_537, 1_000] {
        for at in [8, 16] {
            let mut bytes = Builder::valid().build();
            bytes[at..at + 8].copy_from_slice(&count.to_le_bytes());
            Gguf::parse(&bytes).unwrap_err();
        }
        for kind in 0..13 {
            let mut b = Builder::new();
            b.metadata = vec![pair("k", 9, &array(kind, count, &[0; 64]))];
            assert!(b.refusal().contains("byte"), "array of {count} of type {kind}");
        }
        let mut b = Builder::new();
        b.metadata = vec![[&count.to_le_bytes()[..], b"key"].concat()];
        assert!(b.refusal().contains("string length"));
    }
}

#[test]
fn arrays_nested_beyond_the_limit_are_refused() {
    let mut value = array(0, 1, &[1]);
    for _ in 0..100 {
        value = array(9, 1, &value);
    }
    let mut b = Builder::new();
    b.metadata = vec![pair("deep", 9, &value)];
    assert!(b.refusal().contains("nests arrays too deeply"));
}

#[test]
fn duplicate_names_are_refused() {
    let mut b = Builder::valid();
    b.metadata.push(pair("a.u8", 0, &[1]));
    assert!(b.refusal().contains("`a.u8` appears twice"));
    let mut b = Builder::valid();
    b.tensors.push(entry("matrix", &[1], 0, 64));
    assert!(b.refusal().contains("`matrix` appears twice"));
}

#[test]
fn tensors_that_overlap_or_are_misaligned_or_outside_are_refused() {
    let refusal = |tensors: Vec<Vec<u8>>| Builder { tensors, ..Builder::valid() }.refusal();
    let overlap = refusal(vec![entry("a", &[16], 0, 0), entry("b", &[4], 0, 32)]);
    assert!(overlap.contains("`a` and `b` overlap"), "{overlap}");
    assert!(refusal(vec![entry("a", &[2], 0, 8)]).contains("alignment"));
    assert!(refusal(vec![entry("a", &[2], 0, 128)]).contains("past the end"));
    assert!(refusal(vec![entry("a", &[25], 0, 0)]).contains("needs 100 bytes"));
    assert!(refusal(vec![entry("a", &[2], 0, u64::MAX - 31)]).contains("past the end"));
}

#[test]
fn shapes_that_make_no_sense_are_refused() {
    let refusal = |tensors: Vec<Vec<u8>>| Builder { tensors, ..Builder::valid() }.refusal();
    assert!(refusal(vec![entry("a", &[], 0, 0)]).contains("0 dimensions"));
    assert!(refusal(vec![entry("a", &[1; 5], 0, 0)]).contains("5 dimensions"));
    assert!(refusal(vec![entry("a", &[4, 0], 0, 0)]).contains("dimension of 0"));
    assert!(refusal(vec![entry("a", &[33], 2, 0)]).contains("blocks"));
    assert!(refusal(vec![entry("a", &[1 << 40, 1 << 40], 0, 0)]).contains("`a`"));
    assert!(refusal(vec![entry("a", &[u64::MAX], 1, 0)]).contains("`a`"));
    let b = Builder { tensors: vec![entry("cube", &[2, 2, 2], 0, 0)], ..Builder::valid() };
    let bytes = b.build();
    let error = Gguf::parse(&bytes).unwrap().tensor(&bytes, "cube").unwrap_err().to_string();
    assert!(error.contains("only vectors and matrices"), "{error}");
}

#[test]
fn text_that_is_no_utf8_and_booleans_that_are_neither_are_refused() {
    let mut b = Builder::new();
    b.metadata = vec![pair("k", 8, &[2, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe])];
    assert!(b.refusal().contains("UTF-8"));
    b.metadata = vec![pair("k", 7, &[2])];
    assert!(b.refusal().contains("boolean `k` is 2"));
    b.metadata = vec![pair("k", 13, &[2])];
    assert!(b.refusal().contains("unknown type 13"));
}

#[test]
fn a_file_cut_anywhere_is_an_error_or_loses_only_unknown_data() {
    let whole = Builder::valid().build();
    // The unknown tensor's size is not known, so that only a cut before its start can be noticed.
    let noticed = whole.len() - 32;
    for len in 0..whole.len() {
        let result = Gguf::parse(&whole[..len]);
        assert_eq!(result.is_err(), len < noticed, "cut at {len} of {}", whole.len());
    }
}

/// Touches everything a reader would, so that a wrong range would show as a panic.
fn exercise(bytes: &[u8]) {
    if let Ok(gguf) = Gguf::parse(bytes) {
        for info in gguf.tensors() {
            if let Ok(tensor) = gguf.tensor(bytes, info.name()) {
                assert_eq!(tensor.data.len(), tensor.rows * tensor.row_bytes());
                assert!(tensor.rows * tensor.cols <= 2 * bytes.len());
            }
        }
        let _ = crate::ModelConfig::from_gguf(&gguf, bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn flipped_bytes_never_panic(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = Builder::valid().build();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        exercise(&bytes);
    }

    #[test]
    fn overwritten_words_never_panic(at in any::<prop::sample::Index>(), shift in 0_u32..64, minus in 0_u64..3) {
        let mut bytes = Builder::valid().build();
        let at = at.index(bytes.len() - 8);
        bytes[at..at + 8].copy_from_slice(&(1_u64 << shift).wrapping_sub(minus).to_le_bytes());
        exercise(&bytes);
    }

    #[test]
    fn noise_never_panics(tail in prop::collection::vec(any::<u8>(), 0..256)) {
        exercise(&tail);
        exercise(&[b"GGUF\x03\0\0\0", &tail[..]].concat());
    }
}
