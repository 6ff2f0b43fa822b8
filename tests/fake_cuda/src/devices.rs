//! Devices: how many, what they are called, what they can do.

use std::ffi::c_char;
use std::sync::Mutex;

use crate::compiled;
use crate::control;
use crate::entry::{self, Out, entry_points};
use crate::result::{INVALID_VALUE, NO_DEVICE, Outcome};
use crate::settings::Settings;
use crate::state::{self, state};

/// The version that this library says it is: 12.8.
const VERSION: i32 = 12_080;

/// What every device here is, by the number of the attribute; all others are 0. The numbers are those of a discrete H200.
const ATTRIBUTES: &[(i32, i32)] = &[
    (1, 1024),        // MAX_THREADS_PER_BLOCK
    (2, 1024),        // MAX_BLOCK_DIM_X
    (3, 1024),        // MAX_BLOCK_DIM_Y
    (4, 64),          // MAX_BLOCK_DIM_Z
    (5, 0x7FFF_FFFF), // MAX_GRID_DIM_X
    (6, 65_535),      // MAX_GRID_DIM_Y
    (7, 65_535),      // MAX_GRID_DIM_Z
    (8, 49_152),      // MAX_SHARED_MEMORY_PER_BLOCK
    (10, 32),         // WARP_SIZE
    (15, 1),          // GPU_OVERLAP
    (16, 132),        // MULTIPROCESSOR_COUNT
    (18, 0),          // INTEGRATED
    (19, 1),          // CAN_MAP_HOST_MEMORY
    (31, 1),          // CONCURRENT_KERNELS
    (40, 3),          // ASYNC_ENGINE_COUNT
    (41, 1),          // UNIFIED_ADDRESSING
    (75, 9),          // COMPUTE_CAPABILITY_MAJOR
    (76, 0),          // COMPUTE_CAPABILITY_MINOR
    (83, 1),          // MANAGED_MEMORY
    (88, 0),          // PAGEABLE_MEMORY_ACCESS
    (91, 1),          // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
    (99, 1),          // HOST_REGISTER_SUPPORTED
    (100, 0),         // PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES
    (113, 1),         // READ_ONLY_HOST_REGISTER_SUPPORTED
    (115, 1),         // MEMORY_POOLS_SUPPORTED
    (116, 0),         // GPU_DIRECT_RDMA_SUPPORTED
];
/// One more than the last attribute of CUDA 12.
const ATTRIBUTES_END: i32 = 144;

static STARTING: Mutex<()> = Mutex::new(());

fn uuid_of(device: i32) -> [u8; 16] {
    let mut uuid = *b"fake-cuda-device";
    uuid[15] = device as u8;
    uuid
}

fn put_text(text: &str, to: &Out<c_char>, length: i32) -> Outcome {
    let buffer = usize::try_from(length).ok().and_then(|length| length.checked_sub(1)).ok_or(INVALID_VALUE)?;
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    let bytes = &text.as_bytes()[..text.len().min(buffer)];
    // SAFETY: not null, and by the contract of the callers `length` bytes long, of which the text and its zero take no more.
    unsafe {
        to.address().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        to.address().add(bytes.len()).write(0);
    }
    Ok(())
}

entry_points! {
    /// Reads the settings and makes the devices, once.
    fn cuInit(flags: u32) |_| {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let _one_at_a_time = state::lock(&STARTING);
        if !state::is_ready() {
            let settings = Settings::read().map_err(|cause| {
                eprintln!("{cause}");
                INVALID_VALUE
            })?;
            if settings.devices == 0 {
                return Err(NO_DEVICE);
            }
            let report = settings.report.clone();
            state::begin(settings)?;
            entry::begin();
            compiled::register();
            control::report_at_exit(report);
        }
        Ok(())
    }
    /// The version of CUDA.
    fn cuDriverGetVersion(version: Out<i32>) |_| { version.put(VERSION) }
    /// How many devices there are.
    fn cuDeviceGetCount(count: Out<i32>) |_| { count.put(state()?.devices.len() as i32) }
    /// The device of this number: the number.
    fn cuDeviceGet(device: Out<i32>, number: i32) |_| {
        state()?.device(number)?;
        device.put(number)
    }
    /// Writes a device's name, cut where it is longer than `length` bytes with its zero.
    fn cuDeviceGetName(name: Out<c_char>, length: i32, device: i32) |_| {
        state()?.device(device)?;
        put_text(&format!("Stand-in device {device}"), &name, length)
    }
    /// Where the device would be on the bus.
    fn cuDeviceGetPCIBusId(name: Out<c_char>, length: i32, device: i32) |_| {
        state()?.device(device)?;
        put_text(&format!("0000:{:02X}:00.0", device + 1), &name, length)
    }
    /// What a device can do.
    fn cuDeviceGetAttribute(value: Out<i32>, attribute: i32, device: i32) |_| {
        let mut state = state()?;
        state.device(device)?;
        if !(1..ATTRIBUTES_END).contains(&attribute) {
            return Err(INVALID_VALUE);
        }
        let usual = || ATTRIBUTES.iter().find(|row| row.0 == attribute).map_or(0, |row| row.1);
        value.put(state.settings.attributes.get(&attribute).copied().unwrap_or_else(usual))
    }
    /// The bytes of a device's memory.
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) |_| {
        let mut state = state()?;
        state.device(device)?;
        bytes.put(state.settings.memory as usize)
    }
    /// A number that no other device has.
    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: i32) |_| {
        state()?.device(device)?;
        uuid.put(uuid_of(device))
    }
    /// As `cuDeviceGetUuid`.
    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) |_| {
        state()?.device(device)?;
        uuid.put(uuid_of(device))
    }
}
