use crate::CLEAN;
use crate::arguments::Show;
use crate::failure::Failure;
use crate::screen::Screen;

pub(crate) fn run(_options: &Show, _screen: &mut Screen) -> Result<u8, Failure> {
    Ok(CLEAN)
}
