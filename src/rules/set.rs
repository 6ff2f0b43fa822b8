//! Rules of a whole folder: configuration, index, shards and tokenizer together.

use super::rules;

const OTHER_MODEL: &str = "the configuration belongs to another model, or to the model before it was changed";
const SAME_SOURCE: &str = "take configuration and weights from the same source, or write them again together";
const NOT_FETCHED: &str = "only the weights were downloaded or uploaded";

rules! {
    SET_CONFIG_MISSING "MW-IX-101" "set.config-missing" Note:
        "the folder of a model's weights has no config.json";
        NOT_FETCHED;
        "fetch the configuration as well if the folder is to be loaded as a model";
    SET_DTYPE "MW-IX-102" "set.dtype" Note:
        "the dtype in the configuration differs from that of the weights";
        "the weights were converted after the configuration was written";
        "loaders convert the weights to the dtype of the configuration; correct it if that is not wanted";
    SET_FILE_AND_INDEX "MW-IX-103" "set.file-and-index" Warning:
        "a folder has a whole checkpoint and an index of shards with the same name";
        "a model was saved again into the same folder, once in one file and once in shards";
        "keep the one that is meant: loaders differ in which of the two they take";
    SET_HIDDEN_SIZE "MW-IX-104" "set.hidden-size" Warning:
        "the number of columns of the embedding differs from the configuration";
        OTHER_MODEL;
        SAME_SOURCE;
    SET_INDEXES "MW-IX-105" "set.indexes" Note:
        "the folder has several indexes of shards";
        "variants of a model are in one folder, or an index of an older version was left there";
        "name the right one when you load it, and remove what is not needed";
    SET_JSON "MW-IX-106" "set.json" Error:
        "a configuration in the folder is not valid JSON";
        "the download was cut short, a web page was saved in its place, or it was edited by hand";
        "fetch the file again, or correct it at the place named";
    SET_JSON_KEY "MW-IX-107" "set.json-key" Warning:
        "a configuration in the folder has a key twice in one object";
        "it was edited by hand, or made so that two readers see different values";
        "keep one of the two: most readers take the last";
    SET_LAYERS "MW-IX-108" "set.layers" Warning:
        "the weights have fewer layers than the configuration";
        "a shard is left out, or the configuration belongs to a larger model";
        SAME_SOURCE;
    SET_LAYERS_MORE "MW-IX-109" "set.layers-more" Note:
        "the weights have more layers than the configuration";
        "there are layers that only another program uses, or the configuration truncates the model";
        "loaders leave them out silently; correct the configuration if that is not wanted";
    SET_NO_INDEX "MW-IX-110" "set.no-index" Note:
        "all shards of a set exist, but no index names them";
        "the index was not downloaded, or the writer does not make one";
        "fetch the index as well: some loaders do not read shards without it";
    SET_ORPHAN_SHARD "MW-IX-111" "set.orphan-shard" Warning:
        "a file is named like a shard, but the index does not name it";
        "shards of an older version of the model remained, or the index is older than the shards";
        "remove it, or fetch the shards and the index again together";
    SET_SHARD_DTYPE "MW-IX-112" "set.shard-dtype" Note:
        "one shard has a different dtype from the others";
        "shards of two versions of a model are mixed";
        "compare the shards with those of the source";
    SET_SHARD_METADATA "MW-IX-113" "set.shard-metadata" Note:
        "the shards of a set disagree on what wrote them";
        "shards of two programs or of two versions of a model are mixed";
        "compare the shards with those of the source";
    SET_TIED "MW-IX-114" "set.tied" Note:
        "an output layer is stored although the configuration ties it to the embedding";
        "the model was trained or saved with the two untied, or the writer stores both";
        "loaders use the embedding instead; set tie_word_embeddings to false if they differ";
    SET_TOKENIZER_MISSING "MW-IX-115" "set.tokenizer-missing" Note:
        "the folder of a text model's weights has no tokenizer";
        NOT_FETCHED;
        "fetch the files of the tokenizer as well if the folder is to be used without changes";
    SET_TOKENIZER_SIZE "MW-IX-116" "set.tokenizer-size" Warning:
        "the tokenizer has tokens for which the embedding has no row";
        "tokens were added without resizing the embedding, or the tokenizer belongs to another model";
        "resize the embedding with the library that loads the model, or take the tokenizer that belongs to it";
    SET_VOCABULARY "MW-IX-117" "set.vocabulary" Warning:
        "the number of rows of the embedding differs from the configuration's vocabulary";
        OTHER_MODEL;
        SAME_SOURCE;
}
