//! Rules of archives, and of code in files that are not pickles: hidden contents, and contents that could not be examined.

use super::{CUT, DAMAGED, FETCH_AGAIN, MADE, TWO_IN_ONE, rules};

const TWO_TRUTHS: &str = "the archive was edited, or made to show a scanner and a loader different files: readers disagree on which record to believe";
const DO_NOT_LOAD: &str = "do not load it; look at what was found there, and ask where the file comes from";
const PACK_AGAIN: &str = "if you trust where it comes from, unpack it, look at what is in it, and pack it again";
const UNPACK_FIRST: &str =
    "nothing is known about it: unpack it with a program for such archives, and validate the files";
const TRUST: &str = "load it only if you trust where it comes from, or ask for weights without code";
const CODE_IN_MODEL: &str = "the model was saved with its author's code, as its format allows";
const MADE_TO_REACH: &str =
    "no program writes this by itself: it was put there to make the loader reach what is not part of the model";

rules! {
    ARCHIVE_BOMB "MW-EX-201" "archive.bomb" Error:
        "compressed bytes would unpack to more than is allowed";
        "a zip bomb that exhausts the program that unpacks it, or gigabytes of zeros";
        "nothing is known about the rest: if you trust it, unpack it and validate the files, or raise the limit on unpacked bytes";
    ARCHIVE_CASE "MW-EX-202" "archive.case" Warning:
        "two members have names that differ only in letter case";
        "on some systems, and for some readers, they are one file";
        PACK_AGAIN;
    ARCHIVE_COMMENT "MW-EX-203" "archive.comment" Note:
        "the archive has a comment";
        "some programs note there what they are, or the state of a repository; PyTorch and NumPy write none";
        "nothing is lost; pack it again to remove the comment";
    ARCHIVE_CRC "MW-EX-204" "archive.crc" Error:
        "the bytes of a member do not match the checksum in the archive";
        "a copy or a disk damaged them, or they were changed in place";
        "fetch the file again";
    ARCHIVE_DAMAGED "MW-EX-205" "archive.damaged" Error:
        "an archive or a compressed file ends early, or holds something that its format does not have";
        CUT;
        FETCH_AGAIN;
    ARCHIVE_DEEP "MW-EX-206" "archive.deep" Error:
        "archives are nested deeper than they are examined";
        "a file that was packed over and over, usually to hide what is in it";
        "nothing is known about its contents: unpack it and validate the files, or raise the limit on nesting";
    ARCHIVE_DUPLICATE "MW-EX-207" "archive.duplicate" Malicious:
        "two members have the same name but different contents";
        "readers differ in which of the two they take: a scanner sees one, and a loader the other";
        DO_NOT_LOAD;
    ARCHIVE_ENCRYPTED "MW-EX-208" "archive.encrypted" Error:
        "a member is encrypted and was not looked at";
        "the archive was packed with a password";
        "nothing is known about it: unpack it with the password and validate the files";
    ARCHIVE_FLAGS "MW-EX-209" "archive.flags" Malicious:
        "a member is marked as encrypted or patched, but is neither";
        "some readers refuse such a member and others ignore the mark, which hides the member from scanners";
        DO_NOT_LOAD;
    ARCHIVE_HIDDEN "MW-EX-210" "archive.hidden" Malicious:
        "something that can be loaded or run lies where the format of the file has nothing";
        TWO_IN_ONE;
        DO_NOT_LOAD;
    ARCHIVE_LINK "MW-EX-211" "archive.link" Malicious:
        "a member is a link that leads out of the archive";
        "a program that unpacks it and then uses the link reads or writes another file on the machine";
        DO_NOT_LOAD;
    ARCHIVE_LOCAL "MW-EX-212" "archive.local" Malicious:
        "the two headers of a member differ";
        TWO_TRUTHS;
        DO_NOT_LOAD;
    ARCHIVE_MANY "MW-EX-213" "archive.many" Error:
        "there are more members than are examined";
        MADE;
        UNPACK_FIRST;
    ARCHIVE_METHOD "MW-EX-214" "archive.method" Error:
        "a member is compressed by a method that is not supported, and was not looked at";
        "an unusual program packed it, or a number was changed so that only some readers open it";
        UNPACK_FIRST;
    ARCHIVE_OVERLAP "MW-EX-215" "archive.overlap" Malicious:
        "a member begins before the previous one ends";
        "a bomb, or an archive made so that readers see it differently";
        DO_NOT_LOAD;
    ARCHIVE_PATH "MW-EX-216" "archive.path" Malicious:
        "the name of a member leads out of the folder that it is unpacked into";
        "the archive is made to write files elsewhere when it is unpacked";
        DO_NOT_LOAD;
    ARCHIVE_PREFIX "MW-EX-217" "archive.prefix" NeedsTrust:
        "the file has other bytes before the archive";
        "a self-extracting program, or two files in one: readers that start from the front and from the end see different files";
        PACK_AGAIN;
    ARCHIVE_PROGRAM "MW-EX-218" "archive.program" NeedsTrust:
        "the model archive contains programs that its server runs";
        "TorchServe and others pack a handler with the weights";
        TRUST;
    ARCHIVE_STRAY "MW-EX-219" "archive.stray" Warning:
        "bytes belong to no member of the archive, or follow the end of the data";
        "a member was deleted in place, or something was inserted between the members or after them";
        PACK_AGAIN;
    ARCHIVE_TWO_ENDS "MW-EX-220" "archive.two-ends" Malicious:
        "one file has two archive directories";
        TWO_TRUTHS;
        DO_NOT_LOAD;
    ARCHIVE_UNSUPPORTED "MW-EX-221" "archive.unsupported" Error:
        "this kind of archive is recognised, but cannot be examined";
        "it was packed in a format that is not supported here";
        UNPACK_FIRST;
    ARCHIVE_ZIP64 "MW-EX-222" "archive.zip64" Malicious:
        "the end record for large archives contradicts the plain one";
        TWO_TRUTHS;
        DO_NOT_LOAD;

    ARROW_PICKLE "MW-EX-223" "arrow.pickle" NeedsTrust:
        "a table of Arrow or Parquet has a column whose type is described by a pickle";
        "it was written with a type that is a class of Python, of pyarrow's PyExtensionType";
        "read it with pyarrow 14.0.1 or newer, which does not unpickle such a type, or only if you trust where it comes from";

    CONTAINER_EXECUTABLE "MW-EX-231" "container.executable" Malicious:
        "an executable program is named like weights";
        "it was renamed to avoid inspection";
        DO_NOT_LOAD;
    CONTAINER_METADATA "MW-EX-232" "container.metadata" NeedsTrust:
        "the metadata of a weights file holds code";
        "it was put there on purpose; a program that runs or renders metadata would run it";
        TRUST;
    CONTAINER_PATH_FILE "MW-EX-233" "container.path-file" Malicious:
        "the file is one of Python's path files, with a line that runs whenever Python starts";
        "such files have the suffix .pth as well: in a folder of packages this one runs without being loaded";
        "do not put it into one of Python's folders; it is not a checkpoint";
    CONTAINER_PICKLE "MW-EX-234" "container.pickle" Malicious:
        "a pickle or an archive hides in a file of a format that has none";
        TWO_IN_ONE;
        DO_NOT_LOAD;
    CONTAINER_POLYGLOT "MW-EX-235" "container.polyglot" Malicious:
        "the file is a zip archive and a file of another format at once";
        TWO_IN_ONE;
        DO_NOT_LOAD;
    CONTAINER_SUFFIX "MW-EX-236" "container.suffix" NeedsTrust:
        "a file that can run code has the suffix of a format that cannot";
        "it was renamed, by mistake or so that it would be loaded without a second look";
        "give it the suffix that it should have, and load it only if you trust where it comes from";

    HDF5_EXTERNAL "MW-EX-241" "hdf5.external" Malicious:
        "the HDF5 file takes data from another file";
        MADE_TO_REACH;
        DO_NOT_LOAD;

    KERAS_CODE "MW-EX-251" "keras.code" NeedsTrust:
        "a layer of the Keras model contains compiled Python code";
        CODE_IN_MODEL;
        TRUST;
    KERAS_CONFIG "MW-EX-252" "keras.config" Error:
        "the configuration of the Keras model cannot be read";
        DAMAGED;
        FETCH_AGAIN;
    KERAS_CUSTOM "MW-EX-253" "keras.custom" NeedsTrust:
        "the Keras model names a class or function that is not a Keras layer";
        CODE_IN_MODEL;
        TRUST;
    KERAS_MALICIOUS "MW-EX-254" "keras.malicious" Malicious:
        "loading the Keras model runs commands or reaches files";
        MADE_TO_REACH;
        DO_NOT_LOAD;

    NUMPY_HEADER "MW-EX-261" "numpy.header" Error:
        "the header of a NumPy file is not the plain dict that NumPy writes";
        DAMAGED;
        "save the array again with numpy.save";
    NUMPY_OBJECT "MW-EX-262" "numpy.object" Note:
        "a NumPy file holds objects, which are pickled";
        "an array of strings, lists or other objects was saved";
        "save numbers only, or load it with allow_pickle=True if you trust it";
    NUMPY_SIZE "MW-EX-263" "numpy.size" Error:
        "a NumPy file has fewer bytes than its shape needs";
        CUT;
        FETCH_AGAIN;

    ONNX_DAMAGED "MW-EX-271" "onnx.damaged" Error:
        "the ONNX file does not follow its format";
        CUT;
        FETCH_AGAIN;
    ONNX_DOMAIN "MW-EX-272" "onnx.domain" NeedsTrust:
        "the ONNX model needs operators from a custom library";
        "it was exported with custom operators";
        "load it only with a library for these operators that you trust: without one, the model does not run";
    ONNX_EXTERNAL_DATA "MW-EX-275" "onnx.external-data" Error:
        "the external data of an ONNX model is missing, or shorter than the model says";
        "part of the model was not copied or fetched, or its download was cut short";
        "fetch all files of the model again, into one folder";
    ONNX_LINK "MW-EX-273" "onnx.link" NeedsTrust:
        "the external data of an ONNX model is a link to another file";
        "a link can lead the loader to any file on the machine";
        "replace the link with the file itself";
    ONNX_PATH "MW-EX-274" "onnx.path" Malicious:
        "the ONNX model takes data from a file outside its folder";
        MADE_TO_REACH;
        DO_NOT_LOAD;

    SKOPS_MALICIOUS "MW-EX-281" "skops.malicious" Malicious:
        "loading the skops file runs commands or reaches files";
        MADE_TO_REACH;
        DO_NOT_LOAD;
    SKOPS_TYPE "MW-EX-282" "skops.type" NeedsTrust:
        "the skops file names classes or functions that are not on the list of those that estimators need";
        CODE_IN_MODEL;
        TRUST;

    TENSORFLOW_OPERATION "MW-EX-291" "tensorflow.operation" NeedsTrust:
        "the TensorFlow graph has operations that reach files or call Python";
        "a graph is a program: these operations are rarely needed to compute a model";
        TRUST;

    TFLITE_CUSTOM "MW-EX-292" "tflite.custom" NeedsTrust:
        "the TensorFlow Lite model needs operators from a custom library";
        "it was converted with custom operators";
        "load it only with a library for these operators that you trust: without one, the model does not run";
    TFLITE_DAMAGED "MW-EX-293" "tflite.damaged" Error:
        "the TensorFlow Lite file does not follow its format";
        CUT;
        FETCH_AGAIN;
    TFLITE_FLEX "MW-EX-294" "tflite.flex" Note:
        "the TensorFlow Lite model has operators of TensorFlow itself";
        "it was converted with SELECT_TF_OPS, as TensorFlow Lite does not have all operators";
        "load it with TensorFlow's Flex delegate; without it the model does not run";
}
