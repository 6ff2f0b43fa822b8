//! A model as a component of a bill of materials in CycloneDX 1.6.
