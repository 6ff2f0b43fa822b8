//! Functions by name, as `cuGetProcAddress` finds them: the newest form of each.

use std::ffi::{CStr, c_char, c_void};

use crate::entry::{self, Out, entry_points};
use crate::result::{INVALID_VALUE, NOT_FOUND};

const FOUND: u32 = 0;
const SYMBOL_NOT_FOUND: u32 = 1;

entry_points! {
    /// The address of a function that is named without its version.
    fn cuGetProcAddress_v2(symbol: *const c_char, function: Out<*const c_void>, _version: i32, _flags: u64, status: Out<u32>) |_| {
        if symbol.is_null() || function.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, and by the contract of the function a string that ends with a zero byte.
        let name = unsafe { CStr::from_ptr(symbol) }.to_str().map_err(|_| INVALID_VALUE)?;
        let table = entry::functions();
        let named = |suffix: &str| table.iter().find(|row| row.name.strip_suffix(suffix) == Some(name));
        let found = named("_v2").or_else(|| named(""));
        status.put_if_requested(if found.is_some() { FOUND } else { SYMBOL_NOT_FOUND });
        function.put(found.map_or(std::ptr::null(), |row| row.address))?;
        found.map(|_| ()).ok_or(NOT_FOUND)
    }
}
