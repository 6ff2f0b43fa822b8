//! Manifests: what files and tensors were, so that it can be told whether they still are.
