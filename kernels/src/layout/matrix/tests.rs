use super::*;
use half::{bf16, f16};

fn value(index: usize) -> f32 {
    ((index * 7919 % 1009) as f32 - 504.0) / 64.0
}

#[test]
fn rows_come_back_as_they_were_packed() {
    for (rows, cols) in [(1, 1), (16, 8), (33, 17), (70, 300)] {
        let data: Vec<f32> = (0..rows * cols).map(value).collect();
        let narrow: Vec<u16> = data.iter().map(|&x| bf16::from_f32(x).to_bits()).collect();
        let halves: Vec<u16> = data.iter().map(|&x| f16::from_f32(x).to_bits()).collect();
        let all = [
            Matrix::from_f32(rows, cols, &data),
            Matrix::from_bf16_bits(rows, cols, &narrow),
            Matrix::from_f16_bits(rows, cols, &halves),
        ];
        let mut out = vec![0.0; cols];
        for row in 0..rows {
            let expected = &data[row * cols..][..cols];
            all[0].row_to_f32(row, &mut out);
            assert_eq!(out, expected);
            all[1].row_to_f32(row, &mut out);
            assert!(out.iter().zip(expected).all(|(&a, &b)| a == bf16::from_f32(b).to_f32()));
            all[2].row_to_f32(row, &mut out);
            assert!(out.iter().zip(expected).all(|(&a, &b)| a == f16::from_f32(b).to_f32()));
        }
    }
}

#[test]
fn grouped_rows_are_scale_times_number_plus_minimum() {
    for (rows, cols, group, bits) in
        [(3, 64_usize, 32_usize, 4), (40, 50, 16, 4), (33, 31, 32, 8), (65, 48, 16, 8)]
    {
        let groups = cols.div_ceil(group);
        let number = |row: usize, k: usize| ((row * 31 + k * 17) % (1 << bits)) as u8;
        let mut asked = Vec::new();
        let matrix = Matrix::from_grouped(rows, cols, group, bits, &mut |row, q, scale, min| {
            asked.push(row);
            assert_eq!((q.len(), scale.len(), min.len()), (cols, groups, groups));
            q.iter_mut().enumerate().for_each(|(k, q)| *q = number(row, k));
            scale.iter_mut().enumerate().for_each(|(g, s)| *s = value(row * groups + g));
            min.iter_mut().enumerate().for_each(|(g, m)| *m = value(row + g * 3));
        });
        assert_eq!(asked, (0..rows).collect::<Vec<_>>());
        let mut out = vec![0.0; cols];
        for row in 0..rows {
            matrix.row_to_f32(row, &mut out);
            let q: Vec<u8> = (0..cols).map(|k| number(row, k)).collect();
            let scale: Vec<f32> = (0..groups).map(|g| value(row * groups + g)).collect();
            let min: Vec<f32> = (0..groups).map(|g| value(row + g * 3)).collect();
            let grouped = GroupedRow { q: &q, scale: &scale, min: &min };
            for (k, &weight) in out.iter().enumerate() {
                assert_eq!(weight, grouped.weight(k, group), "{row} {k}");
            }
        }
    }
}

#[test]
fn four_bit_weights_take_less_memory_than_eight_bit_ones() {
    let fill: &mut FillRow<'_> = &mut |_, q, _, _| q.fill(3);
    let four = Matrix::from_grouped(64, 128, 32, 4, fill).bytes();
    let eight = Matrix::from_grouped(64, 128, 32, 8, fill).bytes();
    assert_eq!(eight - four, 64 * 128 / 2);
    // Scales and minima of zero are exact in half precision: two bytes each.
    assert_eq!(four, 64 * 128 / 2 + 64 * 4 * 2 * 2);
}

#[test]
fn scales_are_narrowed_only_where_each_stays_exact() {
    let bytes =
        |scale: f32| Matrix::from_grouped(1, 32, 32, 4, &mut |_, _, scales, _| scales.fill(scale)).bytes();
    assert_eq!(bytes(0.1) - bytes(0.125), 2 * 2 * STRIP);
    assert_eq!(bytes(1e6), bytes(0.1));
}

#[test]
#[should_panic(expected = "above 15")]
fn a_number_wider_than_its_bits_is_refused() {
    Matrix::from_grouped(1, 32, 32, 4, &mut |_, q, _, _| q[5] = 16);
}

#[test]
#[should_panic(expected = "needs as many weights")]
fn data_of_another_size_is_refused() {
    Matrix::from_f32(usize::MAX / 2, 3, &[0.0; 3]);
}

#[test]
#[should_panic(expected = "exceeds the address space")]
fn a_size_that_cannot_exist_is_refused_before_memory_is_asked_for() {
    Matrix::from_grouped(usize::MAX / 4, 1 << 20, 32, 8, &mut |_, _, _, _| ());
}
