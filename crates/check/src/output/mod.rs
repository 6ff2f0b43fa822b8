//! Reports in the forms that people and CI systems read.
