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
#[should_panic(expected = "needs as many weights")]
fn data_of_another_size_is_refused() {
    Matrix::from_f32(usize::MAX / 2, 3, &[0.0; 3]);
}
