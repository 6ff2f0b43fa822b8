//! Rules of the files next to weights: configurations, templates and programs that loaders run.

use super::rules;

const READ_IT: &str = "read the code before you load the model, or load it where it can do no harm";
const DELETE: &str = "do not load it; tell its publisher what was found";
const BY_HAND: &str = "it was put there by hand to run when the model is loaded or a chat is rendered";
const CONFIGURED: &str = "the configuration was written for a program that builds objects from the names in it";

rules! {
    REPOSITORY_ADAPTER_BASE "MW-EX-301" "repository.adapter-base" Note:
        "the base model of an adapter is a path or a URL";
        "the adapter was trained on a base model in one of its author's folders";
        "set base_model_name_or_path to the name of the base model";
    REPOSITORY_ADAPTER_BASE_PATH "MW-EX-331" "repository.adapter-base-path" NeedsTrust:
        "the base model of an adapter is a path that leads out of the adapter's folder";
        "the base model was in one of the author's folders, or the path was made so that loaders open other files on the machine";
        "give the base model yourself when you load the adapter, or set base_model_name_or_path to its name";
    REPOSITORY_CALL "MW-EX-302" "repository.call" NeedsTrust:
        "a program that no loader runs by itself has words that may run anything or reach the network";
        "a script or a notebook was published with the model";
        "read it before you run it; a linter such as bandit helps";
    REPOSITORY_COMPILED_CODE "MW-EX-304" "repository.compiled-code" NeedsTrust:
        "the folder has compiled code, which cannot be reviewed and some loaders run";
        "a library or a program's cache was published with the model";
        "delete it, unless you know who built it and from what";
    REPOSITORY_CONFIG_UNREADABLE "MW-EX-305" "repository.config-unreadable" Warning:
        "a configuration is not valid JSON, so what it makes loaders run is unknown";
        "the file was cut short or edited by hand, or something else has this name";
        "fetch the file again, or fix it";
    REPOSITORY_HARD_LINK "MW-EX-306" "repository.hard-link" Note:
        "a file has another name elsewhere, by which its bytes can be changed";
        "a cache or a copy made with hard links created the folder";
        "copy the files if other users must not be able to change them";
    REPOSITORY_INDEX_BACKSLASH "MW-EX-307" "repository.index-backslash" Warning:
        "an index names a file with backslashes, which separate folders on Windows only";
        "the index was written on Windows, with paths put together by hand";
        "write the paths with slashes";
    REPOSITORY_INDEX_PATH "MW-EX-308" "repository.index-path" Malicious:
        "an index names files outside its folder";
        "it was made so that its reader opens other files on the machine";
        DELETE;
    REPOSITORY_LINK_OUTSIDE "MW-EX-309" "repository.link-outside" Warning:
        "a file is a link to a file outside the folder";
        "the folder was assembled from links, or came with one that leads elsewhere";
        "replace the link with the file itself if the folder is meant to be self-contained";
    REPOSITORY_PICKLE_BESIDE "MW-EX-311" "repository.pickle-beside" Note:
        "the same weights are there as pickles and as safetensors";
        "the repository was converted, but the pickles were kept";
        "delete the pickles: loaders take the safetensors unless asked for pickles";
    REPOSITORY_PICKLE_NAMED_SAFE "MW-EX-312" "repository.pickle-named-safe" NeedsTrust:
        "a file is named .safetensors, but is a pickle or an archive of pickles";
        "it was renamed, by mistake or to avoid inspection";
        "do not load it with torch.load; convert it, or fetch the safetensors from where they were made";
    REPOSITORY_PROGRAM "MW-EX-313" "repository.program" Note:
        "the folder has a Python program, a script or a notebook";
        "an example or a tool was published with it";
        "nothing, unless you run it";
    REPOSITORY_PROGRAM_ENCODING "MW-EX-314" "repository.program-encoding" Malicious:
        "a program is written in an encoding that makes it look like something other than what it runs";
        "the encoding hides what Python runs from people and scanners";
        DELETE;
    REPOSITORY_PROGRAM_RUN "MW-EX-332" "repository.program-run" NeedsTrust:
        "a program is one that loaders or Python run: a configuration names it, another such program imports it, or its name alone tells them";
        "the model brings its own code, or code for a server, for torch.hub, for generate() or for a pipeline";
        READ_IT;
    REPOSITORY_REMOTE_CODE "MW-EX-316" "repository.remote-code" NeedsTrust:
        "a configuration makes loaders run code in its folder";
        "the model's class is not part of the library, and comes with the model";
        READ_IT;
    REPOSITORY_REMOTE_CODE_ELSEWHERE "MW-EX-317" "repository.remote-code-elsewhere" NeedsTrust:
        "a configuration makes loaders fetch code from another repository and run it";
        "the repository uses code from another one, whose owner may change it at any time";
        "read the code of the other repository, and pin its revision with code_revision";
    REPOSITORY_REQUIREMENT "MW-EX-318" "repository.requirement" Note:
        "requirements name packages by URL, outside the package index";
        "an unreleased version is needed, or a private package";
        "look at what is at the URL before you install it";
    REPOSITORY_TARGET "MW-EX-319" "repository.target" NeedsTrust:
        "a configuration names a class or function that its program imports and calls";
        CONFIGURED;
        "load it with a program that allows only the classes that you know";
    REPOSITORY_TARGET_DANGEROUS "MW-EX-320" "repository.target-dangerous" Malicious:
        "a configuration names a function that runs programs or code, or reaches files";
        BY_HAND;
        DELETE;
    REPOSITORY_TEMPLATE_COMPUTED "MW-EX-333" "repository.template-computed" NeedsTrust:
        "a chat template takes an attribute or item by a name that it computes";
        "it is put together in a way that cannot be followed without rendering, and may be one of Python's internals";
        "render it only in a sandbox, or replace the template with that of the base model";
    REPOSITORY_TEMPLATE_ESCAPE "MW-EX-321" "repository.template-escape" Malicious:
        "a chat template reaches from its values into Python's internals";
        BY_HAND;
        DELETE;
    REPOSITORY_TEMPLATE_EXHAUSTS "MW-EX-322" "repository.template-exhausts" Malicious:
        "a chat template makes an endless range, string or number";
        "it was made so that a program that renders it runs out of time or memory";
        DELETE;
    REPOSITORY_TEMPLATE_GLOBAL "MW-EX-323" "repository.template-global" NeedsTrust:
        "a chat template looks into an object that web frameworks give their templates";
        "the template was made for a server, or to read the server's secrets";
        "replace the template with that of the base model";
    REPOSITORY_TEMPLATE_INCLUDE "MW-EX-324" "repository.template-include" NeedsTrust:
        "a chat template loads another template";
        "chat templates are rendered on their own; one that loads another was made for something else";
        "replace the template with that of the base model";
    REPOSITORY_TEMPLATE_UNREADABLE "MW-EX-325" "repository.template-unreadable" Warning:
        "a chat template is incomplete or too long; its tags were examined one by one";
        "it uses a program's own extensions of Jinja, or is broken";
        "review it before you render it";
    REPOSITORY_TOO_LONG "MW-EX-326" "repository.too-long" Warning:
        "a configuration or program is too long to be searched for what it runs";
        "data was put into it, or it was made too long for a review";
        "split the data off, or review it";
    REPOSITORY_TRUST_KEY "MW-EX-327" "repository.trust-key" NeedsTrust:
        "a configuration sets trust_remote_code, with which loaders run a repository's code without asking";
        "options of the program that trained the model were saved with it, or it was set to run code";
        "remove the key, and pass the option where the model is loaded if you trust its code";
    REPOSITORY_YAML_CALL "MW-EX-328" "repository.yaml-call" Malicious:
        "a tag of a YAML file makes PyYAML's unsafe loader call a function";
        BY_HAND;
        DELETE;
    REPOSITORY_YAML_OBJECT "MW-EX-329" "repository.yaml-object" NeedsTrust:
        "a tag of a YAML file makes PyYAML's unsafe loader import a class";
        "a program saved its options with yaml.dump instead of yaml.safe_dump";
        "load it with yaml.safe_load, or write the file again without the tag";
    REPOSITORY_YAML_UNREADABLE "MW-EX-330" "repository.yaml-unreadable" Warning:
        "a YAML file cannot be parsed; only its words were examined";
        "it is a template of a YAML file, or is broken";
        "review it before you load it";
}
