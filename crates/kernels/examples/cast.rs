//! Converts numbers to a dtype and back, and prints what is left of them: `cargo run --example cast float8_e4m3fn 0.1 1 448 1000`.

use std::error::Error;

use max_weights_kernels::DType;
use max_weights_kernels::cast::{CastOptions, cast, elements_per_group};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "float8_e4m3fn".into());
    let dtype = DType::all().find(|dtype| dtype.name() == name).ok_or_else(|| {
        let names: Vec<&str> = DType::all().map(DType::name).collect();
        format!("there is no dtype {name}; there are {}", names.join(", "))
    })?;
    let mut numbers = arguments.map(|text| text.parse()).collect::<Result<Vec<f32>, _>>()?;
    if numbers.is_empty() {
        numbers = vec![0.1, 1.0, 448.0, 1000.0];
    }
    let given = numbers.len();
    // Elements of 4 or 6 bits fill whole bytes in groups of two or four.
    numbers.resize(given.next_multiple_of(elements_per_group(dtype)), 0.0);

    let floats: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let mut codes = vec![0; numbers.len() * dtype.bits() / 8];
    cast(DType::Float32, dtype, &floats, &mut codes, CastOptions::default())?;
    let mut back = vec![0; floats.len()];
    cast(dtype, DType::Float32, &codes, &mut back, CastOptions::default())?;

    println!("{given} numbers as {dtype}, {} bytes: {codes:02x?}", codes.len());
    for (number, back) in numbers.iter().zip(back.as_chunks().0).take(given) {
        println!("{number} -> {}", f32::from_le_bytes(*back));
    }
    Ok(())
}
