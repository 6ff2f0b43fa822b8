use crate::CLEAN;
use crate::arguments::Globals;
use crate::failure::Failure;
use crate::screen::Screen;

pub(crate) fn run(_options: &Globals, _screen: &mut Screen) -> Result<u8, Failure> {
    Ok(CLEAN)
}
