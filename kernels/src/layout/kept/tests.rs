use std::sync::Arc;

use super::*;
use crate::layout::pages::Pages;
use crate::layout::quant::Width;

const FORMS: [Form; 8] = [
    Form { width: Width::Four, scaling: Scaling::Centred { zero: 8 } },
    Form { width: Width::Four, scaling: Scaling::Affine },
    Form { width: Width::Four, scaling: Scaling::NestedAffine },
    Form { width: Width::Six, scaling: Scaling::Centred { zero: 16 } },
    Form { width: Width::Six, scaling: Scaling::Affine },
    Form { width: Width::Six, scaling: Scaling::NestedAffine },
    Form { width: Width::Six, scaling: Scaling::NestedCentred { zero: 32 } },
    Form { width: Width::Eight, scaling: Scaling::Centred { zero: 128 } },
];

fn kinds() -> impl Iterator<Item = Kind> {
    [Kind::F32, Kind::Bf16, Kind::F16].into_iter().chain(FORMS.map(Kind::Quantised))
}

fn number(row: usize, k: usize) -> usize {
    (row * 7919 + k * 104_729) % 65_521
}

fn packed(rows: usize, cols: usize, kind: Kind) -> Matrix {
    let bits: Vec<u16> = (0..rows * cols).map(|i| (number(i / cols, i % cols) % 0x7c00) as u16).collect();
    match kind {
        Kind::F32 => {
            let values: Vec<f32> = bits.iter().map(|&bits| f32::from(bits) / 64.0).collect();
            Matrix::from_f32(rows, cols, &values)
        }
        Kind::Bf16 => Matrix::from_bf16_bits(rows, cols, &bits),
        Kind::F16 => Matrix::from_f16_bits(rows, cols, &bits),
        Kind::Quantised(form) => Matrix::from_quantised(rows, cols, form, &mut |row, to| {
            let limit = form.width.limit() as usize;
            to.q.iter_mut().enumerate().for_each(|(k, q)| *q = (number(row, k) % limit) as u8);
            to.d.iter_mut().enumerate().for_each(|(k, d)| *d = (number(row, k) % 0x7c00) as u16);
            to.m.iter_mut().enumerate().for_each(|(k, m)| *m = (number(k, row) % 0x7c00) as u16);
            to.s.iter_mut().enumerate().for_each(|(k, s)| *s = (number(row, k + 1) % 64) as u8);
            to.t.iter_mut().enumerate().for_each(|(k, t)| *t = (number(row, k + 2) % 64) as u8);
        }),
    }
}

/// The sections of a matrix side by side in one region, each on a cache line.
fn kept(matrix: &Matrix) -> Vec<Section> {
    let mut ranges = Vec::new();
    let mut bytes = Vec::new();
    for section in matrix.sections() {
        bytes.resize(bytes.len().next_multiple_of(64), 0);
        ranges.push(bytes.len()..bytes.len() + section.len());
        bytes.extend_from_slice(section);
    }
    let mut pages = Pages::zeroed(bytes.len()).unwrap();
    pages.as_mut().copy_from_slice(&bytes);
    let region = Arc::new(pages);
    ranges.into_iter().map(|bytes| Section { region: Arc::clone(&region), bytes }).collect()
}

#[test]
fn a_matrix_comes_back_from_its_bytes_bit_for_bit() {
    for kind in kinds() {
        for (rows, cols) in [(1, 1), (33, 31), (40, 256), (65, 600)] {
            let own = packed(rows, cols, kind);
            let lens: Vec<usize> = own.sections().iter().map(|section| section.len()).collect();
            assert_eq!(Some(lens), kind.section_bytes(rows, cols), "{kind:?} {rows} x {cols}");
            let shared = Matrix::from_sections(rows, cols, kind, &kept(&own)).unwrap();
            assert_eq!(shared.sections(), own.sections());
            assert_eq!((shared.kind(), shared.bytes()), (kind, own.bytes()));
            let (mut a, mut b) = (vec![0.0; cols], vec![1.0; cols]);
            for row in 0..rows {
                own.row_to_f32(row, &mut a);
                shared.row_to_f32(row, &mut b);
                let bits = |row: &[f32]| row.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&a), bits(&b), "{kind:?}, row {row}");
            }
        }
    }
}

#[test]
fn bytes_that_do_not_fit_the_shape_are_refused() {
    for kind in kinds() {
        let good = kept(&packed(40, 64, kind));
        let from = |rows, sections: &[Section]| Matrix::from_sections(rows, 64, kind, sections).map(|_| ());
        assert_eq!(from(40, &good), Ok(()));
        assert!(matches!(from(80, &good), Err(SectionError::Size { .. })));
        assert!(matches!(from(0, &good), Err(SectionError::Size { .. })));
        assert!(matches!(from(usize::MAX, &good), Err(SectionError::Size { .. })));
        assert!(matches!(from(40, &good[1..]), Err(SectionError::Count { .. })));
        for (index, section) in good.iter().enumerate() {
            let moved = |by: usize| {
                let mut sections = good.clone();
                let start = section.bytes.start + by;
                sections[index].bytes = start..start + section.bytes.len();
                sections
            };
            let end = (*section.region).as_ref().len();
            assert!(matches!(from(40, &moved(end)), Err(SectionError::Size { .. })));
            if section.bytes.end < end {
                assert!(matches!(from(40, &moved(2)), Err(SectionError::Alignment { .. })));
            }
        }
    }
}

/// FNV-1a over the sections of one matrix of each kind. It guards files that were written by earlier builds.
#[test]
fn the_layout_is_that_of_its_version() {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for kind in kinds() {
        for section in packed(45, 300, kind).sections() {
            for &byte in section {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
    }
    assert_eq!(
        (LAYOUT_VERSION, hash),
        (1, 0x7146_ab07_416b_aa89),
        "weights are packed otherwise: raise LAYOUT_VERSION, then this number"
    );
}
