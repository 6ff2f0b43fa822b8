//! The values of NumPy's arrays.

use max_weights_check::{Depth, Level, Report, ValidateOptions};

use super::build::{check_with, deflated, member, rules, zip};
use super::formats::array;

const NONE: [&str; 0] = [];

fn look(name: &str, bytes: &[u8]) -> Report {
    check_with(name, bytes, &ValidateOptions { level: Level::Content, ..ValidateOptions::default() })
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn the_values_of_an_array_are_looked_at_as_those_of_tensors() {
    let many: Vec<f32> = (0..100_000).map(|number| number as f32).collect();
    let mut spoilt = many.clone();
    spoilt[99_999] = f32::NAN;
    for (values, rule) in [
        (many, None),
        (spoilt, Some("values.nan")),
        (vec![0.0; 100_000], Some("values.zero")),
        (vec![1.5; 100_000], Some("values.constant")),
        ([vec![0.0; 1000], vec![1.0; 500], vec![2.0; 98_500]].concat(), Some("values.dead-rows")),
    ] {
        let file = array("'<f4'", "(100, 1000)", &floats(&values));
        for (name, bytes) in [
            ("w.npy", file.clone()),
            ("w.npz", zip(&[member("w.npy", &file)])),
            ("packed.npz", zip(&[deflated("w.npy", &file)])),
        ] {
            let report = look(name, &bytes);
            assert_eq!(rules(&report), rule.into_iter().collect::<Vec<_>>(), "{name}");
            assert_eq!(report.files[0].depth, Depth::Content, "{name}");
            assert!(report.findings.iter().all(|finding| finding.tensor.as_deref() == Some("w")), "{report:?}");
            assert_eq!(report.statistics[0].shape, [100, 1000], "{name}");
            assert_eq!(rules(&check_with(name, &bytes, &ValidateOptions::default())), NONE, "{name}");
        }
    }
}

#[test]
fn every_type_of_numbers_is_read_in_its_byte_order() {
    let nan = f32::NAN.to_be_bytes();
    let one = 1f32.to_be_bytes();
    assert_eq!(rules(&look("a.npy", &array("'>f4'", "(2,)", &[one, nan].concat()))), ["values.nan"]);
    assert_eq!(rules(&look("a.npy", &array("'>c8'", "(1,)", &[one, nan].concat()))), ["values.nan"]);
    let fine = 0x7fc0_0000_u32.to_le_bytes();
    assert_eq!(rules(&look("a.npy", &array("'<i4'", "(2,)", &[fine, [1; 4]].concat()))), NONE);
    assert_eq!(rules(&look("a.npy", &array("'<f2'", "(2,)", b"\x00\x7c\x00\x3c"))), ["values.infinity"]);
    assert_eq!(rules(&look("a.npy", &array("'|b1'", "(3,)", b"\x00\x01\x02"))), ["values.bool"]);
    let wide = [f64::MAX, -f64::MAX, 1.0].map(f64::to_le_bytes).concat();
    assert_eq!(rules(&look("a.npy", &array("'<f8'", "(3,)", &wide))), NONE);
    // In Fortran order these are no rows of zeros.
    let bytes = floats(&[vec![0.0; 16], vec![1.0; 240]].concat());
    let mut columns = array("'<f4'", "(16, 16)", &bytes);
    assert_eq!(rules(&look("a.npy", &columns)), ["values.dead-rows"]);
    let order = columns.windows(5).position(|word| word == b"False").unwrap();
    columns[order..order + 5].copy_from_slice(b"True ");
    assert_eq!(rules(&look("a.npy", &columns)), NONE);
}

#[test]
fn what_is_not_read_of_arrays_is_said() {
    for (descr, bytes) in [("'<f16'", 32), ("[('a', '<f4')]", 8), ("'|V2'", 4)] {
        let report = look("a.npy", &array(descr, "(2,)", &vec![1; bytes]));
        assert_eq!((rules(&report), report.files[0].depth), (vec![], Depth::Structure), "{descr}");
        let note = report.files[0].note.clone().unwrap_or_default();
        assert!(note.starts_with("the values of 1 arrays were not looked at: the type"), "{note}");
    }
    for descr in ["'<U2'", "'<M8[s]'"] {
        assert_eq!(look("a.npy", &array(descr, "(1,)", &[1; 8])).files[0].depth, Depth::Content, "{descr}");
    }
    let cut = look("a.npy", &array("'<f4'", "(2,)", &[1; 7]));
    assert_eq!((rules(&cut), cut.files[0].depth), (vec!["numpy.size"], Depth::Structure));
    let hdf5 = look("m.h5", &[b"\x89HDF\r\n\x1a\n".as_slice(), &[0; 100]].concat());
    assert_eq!(hdf5.files[0].note.as_deref(), Some("the values of its datasets are not looked at"));
}
