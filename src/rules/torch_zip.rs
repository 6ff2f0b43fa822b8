//! Rules of PyTorch's zip archives: the end, the directory, the entries, and their contents.

use super::{APPENDED, CUT, DAMAGED, FETCH_AGAIN, HEADER_LIMIT, MADE, TORCH_AGAIN, TWO_IN_ONE, rules};

const TWO_TRUTHS: &str = "the archive was edited, or made to show a scanner and a loader different files: readers disagree on which record to believe";
const REPACK: &str = "unpack the archive, and pack it again without compression (zip -0 -r), data.pkl first";
const REPACKED: &str = "the archive was unpacked and packed again with a program that does it differently";
const HARMLESS: &str = "nothing is lost; save it again with torch.save to remove the defect";

rules! {
    TORCH_ZIP_BOMB "MW-PT-101" "torch-zip.bomb" Error:
        "compressed bytes would inflate to more than weights do";
        "a zip bomb, or gigabytes of zeros";
        "this is how a zip bomb looks; if you trust the file, unpack it, and pack it again without compression (zip -0 -r)";
    TORCH_ZIP_BYTEORDER "MW-PT-102" "torch-zip.byteorder" Error:
        "the entry byteorder is neither little nor big";
        DAMAGED;
        TORCH_AGAIN;
    TORCH_ZIP_CASE "MW-PT-103" "torch-zip.case" Error:
        "two entries differ only in letter case";
        "PyTorch ignores case when it looks for entries: the archive is made so that readers take different ones";
        TORCH_AGAIN;
    TORCH_ZIP_COMMENT "MW-PT-104" "torch-zip.comment" Warning:
        "the archive has a comment, which PyTorch never writes";
        REPACKED;
        HARMLESS;
    TORCH_ZIP_COUNT "MW-PT-105" "torch-zip.count" Error:
        "the number of entries in the directory differs from its end record";
        TWO_TRUTHS;
        TORCH_AGAIN;
    TORCH_ZIP_CRC "MW-PT-106" "torch-zip.crc" Warning:
        "the bytes of an entry do not match the checksum in the archive";
        "a copy or a disk damaged them, or they were changed in place";
        "fetch the file again";
    TORCH_ZIP_DEFLATE "MW-PT-107" "torch-zip.deflate" Error:
        "the compressed bytes of an entry are damaged, or do not inflate to the number of bytes that the archive says";
        DAMAGED;
        TORCH_AGAIN;
    TORCH_ZIP_DIRECTORY "MW-PT-108" "torch-zip.directory" Error:
        "the directory holds something that is not the record of an entry";
        DAMAGED;
        TORCH_AGAIN;
    TORCH_ZIP_DIRECTORY_PLACE "MW-PT-109" "torch-zip.directory-place" Error:
        "the directory is not at the place given by the end of the archive";
        "bytes were lost from the middle of the file, or put before it";
        "bytes are missing, or were put into the file or before it; fetch it again, or save it again from its source";
    TORCH_ZIP_DIRECTORY_TOO_LONG "MW-PT-110" "torch-zip.directory-too-long" Error:
        "the directory is longer than the limit";
        MADE;
        HEADER_LIMIT;
    TORCH_ZIP_DUPLICATE_NAME "MW-PT-111" "torch-zip.duplicate-name" Error:
        "two entries have the same name";
        TWO_TRUTHS;
        TORCH_AGAIN;
    TORCH_ZIP_ENCRYPTED "MW-PT-112" "torch-zip.encrypted" Error:
        "an entry is encrypted";
        "the archive was packed with a password";
        "decrypt it first (`7z x` asks for the password), or ask its author for a file without a password";
    TORCH_ZIP_ENTRY_TOO_LONG "MW-PT-113" "torch-zip.entry-too-long" Error:
        "an entry that is read whole is longer than the limit";
        MADE;
        HEADER_LIMIT;
    TORCH_ZIP_EXTRA "MW-PT-114" "torch-zip.extra" Error:
        "the extra fields of an entry are broken";
        DAMAGED;
        TORCH_AGAIN;
    TORCH_ZIP_FLAGS "MW-PT-115" "torch-zip.flags" Error:
        "an entry has flags that no checkpoint needs";
        REPACKED;
        REPACK;
    TORCH_ZIP_FOLDER "MW-PT-116" "torch-zip.folder" Error:
        "an entry is a folder, but has bytes";
        TWO_TRUTHS;
        TORCH_AGAIN;
    TORCH_ZIP_GAP "MW-PT-117" "torch-zip.gap" Warning:
        "bytes of the file belong to no entry";
        "an entry was deleted from the archive in place, or another archive is hidden there";
        TORCH_AGAIN;
    TORCH_ZIP_HEADER "MW-PT-118" "torch-zip.header" Error:
        "there is no header where the directory says that an entry begins";
        "bytes were lost from the file or put into it";
        TORCH_AGAIN;
    TORCH_ZIP_LOCAL_CRC "MW-PT-119" "torch-zip.local-crc" Error:
        "the two headers of an entry differ in its checksum";
        TWO_TRUTHS;
        TORCH_AGAIN;
    TORCH_ZIP_LOCAL_FLAGS "MW-PT-120" "torch-zip.local-flags" Error:
        "the two headers of an entry differ in its flags";
        TWO_TRUTHS;
        TORCH_AGAIN;
    TORCH_ZIP_LOCAL_METHOD "MW-PT-121" "torch-zip.local-method" Error:
        "the two headers of an entry differ in how it is compressed";
        TWO_TRUTHS;
        TORCH_AGAIN;
    TORCH_ZIP_LOCAL_NAME "MW-PT-122" "torch-zip.local-name" Error:
        "the two headers of an entry differ in its name";
        TWO_TRUTHS;
        TORCH_AGAIN;
    TORCH_ZIP_LOCAL_SIZE "MW-PT-123" "torch-zip.local-size" Error:
        "the two headers of an entry differ in its size";
        TWO_TRUTHS;
        TORCH_AGAIN;
    TORCH_ZIP_METHOD "MW-PT-124" "torch-zip.method" Error:
        "an entry is compressed by a method that is not supported";
        REPACKED;
        REPACK;
    TORCH_ZIP_NAME "MW-PT-126" "torch-zip.name" Error:
        "the name of an entry is empty, absolute, too long, not UTF-8, or leads out of its folder";
        "the archive is made to write files elsewhere when it is unpacked, or so that readers see it differently";
        TORCH_AGAIN;
    TORCH_ZIP_NO_PICKLE "MW-PT-127" "torch-zip.no-pickle" Error:
        "the archive has no data.pkl where PyTorch looks for it";
        "this is another kind of zip archive, or the checkpoint was packed again with its folder missing or another entry first";
        "unpack it, and open the checkpoint in it, if there is one";
    TORCH_ZIP_ORDER "MW-PT-128" "torch-zip.order" Warning:
        "the directory does not list the entries in the order in which they are in the file";
        REPACKED;
        HARMLESS;
    TORCH_ZIP_OUTSIDE "MW-PT-129" "torch-zip.outside" Error:
        "the data of an entry overlaps the directory";
        DAMAGED;
        TORCH_AGAIN;
    TORCH_ZIP_OUTSIDE_PREFIX "MW-PT-130" "torch-zip.outside-prefix" Warning:
        "entries lie outside the folder of the checkpoint, where PyTorch does not look";
        "a tool added its own notes, or something is hidden there";
        "they are not read; look at them before you trust the file, or save it again with torch.save";
    TORCH_ZIP_OVERLAP "MW-PT-131" "torch-zip.overlap" Error:
        "an entry begins before the previous one ends";
        "a zip bomb, or an archive made so that readers see it differently";
        TORCH_AGAIN;
    TORCH_ZIP_PREPENDED "MW-PT-132" "torch-zip.prepended" Error:
        "the archive does not begin at the start of the file";
        TWO_IN_ONE;
        "something was put before it (a file can be two formats at once that way); save it again from its source";
    TORCH_ZIP_RATIO "MW-PT-133" "torch-zip.ratio" Error:
        "an entry claims more bytes than deflate can produce from the compressed ones";
        MADE;
        TORCH_AGAIN;
    TORCH_ZIP_SIZE "MW-PT-134" "torch-zip.size" Error:
        "an uncompressed entry has two different sizes";
        TWO_TRUTHS;
        TORCH_AGAIN;
    TORCH_ZIP_SPLIT "MW-PT-135" "torch-zip.split" Error:
        "this is one part of a multi-part archive";
        "the archive was split to fit a limit on the size of files";
        "put the parts together into one archive first";
    TORCH_ZIP_STRANGER "MW-PT-136" "torch-zip.stranger" Error:
        "the zip archive is of a known kind that is not a checkpoint";
        "documents, apps, wheels and models of other libraries are also zip archives";
        "pass the checkpoint itself, or convert it as the message says";
    TORCH_ZIP_TORCHSCRIPT "MW-PT-137" "torch-zip.torchscript" Error:
        "this is a TorchScript archive: a program with its weights";
        "it was saved with torch.jit.save";
        "with PyTorch: model = torch.jit.load(PATH); torch.save(model.state_dict(), NEW_PATH), or save_file of safetensors";
    TORCH_ZIP_TRAILING_DATA "MW-PT-138" "torch-zip.trailing-data" Error:
        "bytes follow the end of the archive";
        TWO_IN_ONE;
        APPENDED;
    TORCH_ZIP_TRUNCATED "MW-PT-139" "torch-zip.truncated" Error:
        "the file ends before the end of the archive";
        CUT;
        FETCH_AGAIN;
    TORCH_ZIP_TWO_ENDS "MW-PT-140" "torch-zip.two-ends" Error:
        "the archive has two ends, one in the comment of the other";
        TWO_TRUTHS;
        TORCH_AGAIN;
    TORCH_ZIP_ZIP64 "MW-PT-141" "torch-zip.zip64" Error:
        "the end record for large archives contradicts the plain one, or itself";
        TWO_TRUTHS;
        TORCH_AGAIN;
}
