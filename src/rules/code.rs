//! Rules of the calls that pickles make when they are loaded, and of how they hide them.

use super::{CUT, MADE, rules};

const PAYLOAD: &str = "code was put into the file on purpose, to run when it is loaded";
const HIDDEN: &str = "no program writes this: it hides what loading the file does";
const DO_NOT_LOAD: &str = "do not load it; fetch the weights from a source that you trust, as safetensors";
const OBJECT: &str = "the file was made by pickling a program's objects, whose code runs when they are loaded";
const TRUST: &str = "load it only if you trust where it comes from, or ask for the weights as safetensors";

rules! {
    CODE_BROKEN "MW-EX-101" "code.broken" Error:
        "a pickle is truncated: the part before the break is run, and what follows may be meant for another reader";
        CUT;
        "fetch it again; if it breaks off at the same place, it was made this way and should not be loaded";
    CODE_COMPUTED_CALL "MW-EX-102" "code.computed-call" NeedsTrust:
        "a pickle calls what one of its earlier calls returned";
        OBJECT;
        TRUST;
    CODE_DIVERGENCE "MW-EX-103" "code.divergence" Error:
        "Python's readers disagree on an instruction: one of them refuses it, or takes it for another";
        HIDDEN;
        "do not load it: what it does depends on who reads it; pickle it again from its source";
    CODE_EXTENSION "MW-EX-104" "code.extension" Malicious:
        "a pickle takes a class or function by its number in a registry, without a name";
        HIDDEN;
        DO_NOT_LOAD;
    CODE_FRAME "MW-EX-105" "code.frame" Malicious:
        "a pickle frame ends within an instruction, so the pickle reads differently from a file than from memory";
        HIDDEN;
        DO_NOT_LOAD;
    CODE_INCOMPLETE "MW-EX-106" "code.incomplete" Error:
        "part of a pickle could not be examined";
        MADE;
        "do not load it until you know what it does from another source";
    CODE_LEGACY_HEAD "MW-EX-107" "code.legacy-head" Malicious:
        "one of the first pickles of a PyTorch file is not the plain value that PyTorch writes there";
        HIDDEN;
        DO_NOT_LOAD;
    CODE_LIBRARY_GLOBAL "MW-EX-108" "code.library-global" NeedsTrust:
        "loading the pickle runs code of a known library, with values from the file";
        OBJECT;
        TRUST;
    CODE_MALICIOUS_GLOBAL "MW-EX-109" "code.malicious-global" Malicious:
        "loading the pickle imports or calls something that runs code or programs, or reaches files or the network";
        PAYLOAD;
        "do not load it, and before torch 2.6 not even with weights_only (CVE-2025-32434); fetch the weights from a source that you trust";
    CODE_MISUSED_GLOBAL "MW-EX-110" "code.misused-global" Malicious:
        "a harmless class or function is given arguments that no program gives it, and that make it do something else";
        HIDDEN;
        DO_NOT_LOAD;
    CODE_NESTED_PICKLE "MW-EX-111" "code.nested-pickle" Note:
        "bytes in a pickle are another pickle, and nothing in the pickle loads them";
        "a program keeps its objects as bytes, to load them later";
        "find out what reads the file: the program that loads these bytes runs what they call";
    CODE_OLD_TEXT "MW-EX-112" "code.old-text" Note:
        "a Python 2 string is not ASCII, so its text depends on the encoding that the reader is given";
        "Python 2 wrote the pickle";
        "load it with encoding=\"latin1\", and save it again";
    CODE_PATCHED "MW-EX-113" "code.patched" Malicious:
        "a pickle modifies a class, a function or a module, or turns an object into another one";
        PAYLOAD;
        DO_NOT_LOAD;
    CODE_PERSISTENT_ID "MW-EX-114" "code.persistent-id" Malicious:
        "a pickle refers to something outside it that is not the storage of a tensor";
        HIDDEN;
        DO_NOT_LOAD;
    CODE_SCRIPT_FILES "MW-EX-115" "code.script-files" Malicious:
        "the program of a TorchScript archive has operators that read or write files";
        PAYLOAD;
        DO_NOT_LOAD;
    CODE_STORAGE "MW-EX-116" "code.storage" Error:
        "a storage is missing, or does not have the size that the pickle says: older PyTorch reads beyond its end";
        "the archive was put together by hand, or one of its members was replaced";
        "do not load it with torch before 2.10; save it again from its source";
    CODE_STREAM "MW-EX-117" "code.stream" Note:
        "there are several consecutive pickles";
        "a program wrote its objects one by one; a reader that takes only the first one does not see the others";
        "find out which of them your program loads; all were looked at";
    CODE_TORCH_PACKAGE "MW-EX-118" "code.torch-package" NeedsTrust:
        "the archive is a torch.package, whose Python modules run when it is loaded";
        "it was saved by torch.package, with its code";
        TRUST;
    CODE_TORCHSCRIPT "MW-EX-119" "code.torchscript" NeedsTrust:
        "the archive is a TorchScript program, which runs when it is loaded and called";
        "it was saved by torch.jit.save, with its code";
        TRUST;
    CODE_TRAILING_DATA "MW-EX-120" "code.trailing-data" Error:
        "bytes that its reader does not look at follow the end of a pickle";
        "something was appended: by accident, or for another reader";
        "find out what put them there; save the file again from its source";
    CODE_UNKNOWN_GLOBAL "MW-EX-121" "code.unknown-global" NeedsTrust:
        "loading the pickle imports or calls something that is not on any list";
        OBJECT;
        TRUST;
    CODE_UNREFERENCED_MEMBER "MW-EX-122" "code.unreferenced-member" Error:
        "a member of a PyTorch archive belongs to no tensor, and is not one that PyTorch writes";
        "something was added to the archive after it was saved";
        "find out what put it there; torch.load does not read it, but another program may";
    CODE_UNRESOLVABLE "MW-EX-123" "code.unresolvable" Malicious:
        "what a pickle imports, calls or unpickles is known only when it is loaded";
        HIDDEN;
        DO_NOT_LOAD;
    CODE_WRONG_TARGET "MW-EX-124" "code.wrong-target" Malicious:
        "an instruction that fills a container or sets a state is applied to something else";
        HIDDEN;
        DO_NOT_LOAD;
}
