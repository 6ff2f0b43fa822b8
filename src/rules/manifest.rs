//! Rules of manifests: differences between files or tensors and their manifest.

use super::rules;

const OTHER: &str = "the file was changed, damaged or replaced since, or the manifest belongs to another version";
const FETCH: &str = "fetch the file again; if the change is intended, make a new manifest";
const UNTRUSTED: &str = "the manifest was made by hand, or made to reach files outside the model";

rules! {
    MANIFEST_BROKEN "MW-MF-001" "manifest.broken" Error: "a manifest cannot be read, or contradicts itself"; "it was cut short or edited, or is of another kind or version"; "fetch it again, or make it again with `max-weights manifest create`";
    MANIFEST_CHANGED "MW-MF-002" "manifest.changed" Error: "a file is not the one in the manifest"; OTHER; FETCH;
    MANIFEST_CHANGED_TENSOR "MW-MF-003" "manifest.changed-tensor" Error: "a tensor is not the one in the manifest"; OTHER; FETCH;
    MANIFEST_LEFT_OUT "MW-MF-013" "manifest.left-out" Note: "the folder of version control is in no manifest"; "the model was cloned with git, each of whose commands changes that folder"; "delete .git, or do not load anything from there";
    MANIFEST_LINK "MW-MF-004" "manifest.link" Error: "a file is a link to somewhere outside its folder"; "files were put elsewhere to save space, or a link was made to reach what is not part of the model"; "put the file itself into the folder: what lies elsewhere can change without it";
    MANIFEST_MISSING "MW-MF-005" "manifest.missing" Error: "a file in the manifest is missing"; "only part of the folder was fetched, or the file was deleted or renamed"; FETCH;
    MANIFEST_MISSING_TENSOR "MW-MF-006" "manifest.missing-tensor" Error: "a tensor in the manifest is not in any file"; "a shard is missing, or the tensor was deleted or renamed"; FETCH;
    MANIFEST_MOVED "MW-MF-007" "manifest.moved" Note: "tensors are unchanged, but in another file than in the manifest"; "the checkpoint was sharded differently, or converted to another format"; "nothing: the tensors are the same";
    MANIFEST_NEW "MW-MF-008" "manifest.new" Warning: "a file is not in the manifest"; "it was added later, by a program that writes to the model's folder or by another person"; "find out what it is for; delete it, or make a new manifest";
    MANIFEST_NEW_TENSOR "MW-MF-009" "manifest.new-tensor" Warning: "a tensor is not in the manifest"; "it was added or renamed later"; "find out what it is for, or make a new manifest";
    MANIFEST_PATH "MW-MF-010" "manifest.path" Error: "a manifest names a path that is not below its folder"; UNTRUSTED; "do not use it: no tool writes such a path";
}
