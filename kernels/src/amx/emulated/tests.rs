use super::*;
use crate::amx::tiles::Shape;

/// Tiles 0 += 1 · 2 of so many rows, inputs (a multiple of four) and columns.
fn config(rows: usize, inputs: usize, columns: usize) -> Config {
    let mut shapes = [Shape::default(); TILES];
    shapes[0] = Shape { rows, row_bytes: 4 * columns };
    shapes[1] = Shape { rows, row_bytes: inputs };
    shapes[2] = Shape { rows: inputs / 4, row_bytes: 4 * columns };
    Config::new(shapes)
}

fn tiles(rows: usize, inputs: usize, columns: usize) -> Emulated {
    let mut tiles = Emulated::new();
    tiles.configure(&config(rows, inputs, columns));
    tiles
}

#[test]
fn a_product_of_two_rows_is_the_one_computed_by_hand() {
    let mut tiles = tiles(2, 8, 3);
    // Row 0 is 1 2 3 4 | -1 -2 -3 -4, row 1 is -128 127 0 1 | 0 0 0 5.
    let left = [1_i8, 2, 3, 4, -1, -2, -3, -4, -128, 127, 0, 1, 0, 0, 0, 5].map(i8::cast_unsigned);
    // Column by column: inputs 0..4 in the first row, 4..8 in the second.
    let right = [
        1, 1, 1, 1, 255, 0, 0, 0, 0, 0, 0, 200, //
        1, 1, 1, 1, 0, 255, 0, 0, 9, 9, 9, 200,
    ];
    tiles.load::<1>(&left, 8);
    tiles.load::<2>(&right, 12);
    tiles.dot::<0, 1, 2>();
    let mut sums = [77; 8];
    tiles.store::<0>(&mut sums, 4);
    // 10 - 10; 1·255 - 2·255; 4·200 - (1+2+3)·9 - 4·200. Then 0 + 5; -128·255; 1·200 + 5·200.
    assert_eq!(sums, [0, -255, -54, 77, 5, -32640, 1200, 77]);
    tiles.dot::<0, 1, 2>();
    tiles.store::<0>(&mut sums, 4);
    assert_eq!(sums, [0, -510, -108, 77, 10, -65280, 2400, 77], "a product is added to the sums");
    tiles.zero::<0>();
    tiles.store::<0>(&mut sums, 4);
    assert_eq!(sums, [0, 0, 0, 77, 0, 0, 0, 77]);
}

#[test]
fn bytes_of_the_left_are_signed_and_those_of_the_right_are_not() {
    for (left, right, sum) in [(0xff, 0x01, -1), (0x01, 0xff, 255), (0xff, 0xff, -255), (0x80, 0x80, -16384)]
    {
        assert_eq!(dot_of_four(0, [left, 0, 0, 0], [right, 0, 0, 0]), sum);
        assert_eq!(dot_of_four(1, [0, 0, 0, left], [0, 0, 0, right]), sum + 1);
    }
}

#[test]
fn sums_wrap_and_do_not_saturate() {
    let least = i32::MIN;
    assert_eq!(dot_of_four(least, [0xff, 0, 0, 0], [1, 0, 0, 0]), i32::MAX);
    assert_eq!(dot_of_four(i32::MAX, [1, 0, 0, 0], [1, 0, 0, 0]), least);
}

#[test]
fn loads_follow_the_stride_and_leave_the_rest_zero() {
    let mut tiles = tiles(3, 4, 1);
    let memory: Vec<u8> = (0..100).collect();
    tiles.load::<1>(&memory, 40);
    let tile = tiles.tiles[1];
    assert_eq!(
        [tile[0][..4].to_vec(), tile[1][..4].to_vec(), tile[2][..4].to_vec()],
        [vec![0, 1, 2, 3], vec![40, 41, 42, 43], vec![80, 81, 82, 83]]
    );
    assert!(tile.iter().all(|row| row[4..].iter().all(|&byte| byte == 0)));
    assert!(tile[3..].iter().flatten().all(|&byte| byte == 0));
}

#[test]
fn a_full_tile_uses_every_byte() {
    let mut tiles = tiles(16, 64, 16);
    tiles.load::<1>(&[1; 1024], 64);
    tiles.load::<2>(&[3; 1024], 64);
    tiles.dot::<0, 1, 2>();
    let mut sums = [0; 256];
    tiles.store::<0>(&mut sums, 16);
    assert_eq!(sums, [192; 256]);
}

#[test]
fn configuring_makes_every_tile_zero() {
    let mut tiles = tiles(16, 64, 16);
    tiles.load::<1>(&[1; 1024], 64);
    tiles.configure(&config(2, 4, 2));
    assert!(tiles.tiles.iter().flatten().flatten().all(|&byte| byte == 0));
}

#[test]
#[should_panic(expected = "reaches beyond 12 bytes")]
fn a_row_beyond_the_memory_is_refused() {
    tiles(4, 4, 1).load::<1>(&[0; 12], 4);
}

#[test]
#[should_panic(expected = "reaches beyond")]
fn a_stride_that_leaves_the_address_space_is_refused() {
    tiles(4, 4, 1).store::<0>(&mut [0; 12], usize::MAX / 2);
}

#[test]
#[should_panic(expected = "is not")]
fn shapes_that_do_not_fit_are_refused() {
    let mut shapes = [Shape { rows: 2, row_bytes: 8 }; TILES];
    shapes[2].rows = 3;
    let mut tiles = Emulated::new();
    tiles.configure(&Config::new(shapes));
    tiles.dot::<0, 1, 2>();
}

#[test]
#[should_panic(expected = "are not three")]
fn sums_and_factors_in_one_tile_are_refused() {
    tiles(2, 8, 2).dot::<0, 1, 1>();
}

#[test]
#[should_panic(expected = "before they are configured")]
fn tiles_without_a_configuration_are_refused() {
    Emulated::new().zero::<0>();
}

#[test]
#[should_panic(expected = "cannot hold")]
fn a_tile_of_more_than_sixteen_rows_is_refused() {
    config(17, 4, 1);
}
