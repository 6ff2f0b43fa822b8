//! Rules of a whole folder: configuration, index, shards and tokenizer together.

use super::rules;

const OTHER_MODEL: &str = "the configuration is that of another model, or of the model before it was changed";
const SAME_SOURCE: &str = "take configuration and weights from the same source, or write them again together";
const NOT_FETCHED: &str = "only the weights were downloaded or uploaded";

rules! {
    SET_CONFIG_MISSING "MW-IX-101" "set.config-missing" Note:
        "there is no config.json beside the weights of a model";
        NOT_FETCHED;
        "fetch the configuration, too, if the folder is to be loaded as a model";
    SET_DTYPE "MW-IX-102" "set.dtype" Note:
        "the configuration says another dtype than the weights have";
        "the weights were converted after the configuration was written";
        "loaders convert the weights to the dtype of the configuration; correct it, if that is not wanted";
    SET_FILE_AND_INDEX "MW-IX-103" "set.file-and-index" Warning:
        "a whole checkpoint lies beside an index of shards of the same name";
        "a model was saved again into the same folder, once in one file and once in shards";
        "keep the one that is meant: loaders differ in which of the two they take";
    SET_HIDDEN_SIZE "MW-IX-104" "set.hidden-size" Warning:
        "the embedding has not as many columns as the configuration says";
        OTHER_MODEL;
        SAME_SOURCE;
    SET_INDEXES "MW-IX-105" "set.indexes" Note:
        "the folder has several indices of shards";
        "variants of a model lie in one folder, or one of an older version was left";
        "say which is meant when it is loaded, and remove what is not needed";
    SET_JSON "MW-IX-106" "set.json" Error:
        "a configuration of the folder is no JSON";
        "the download was cut, a page was saved in its place, or it was edited by hand";
        "fetch the file again, or correct it at the place that is named";
    SET_JSON_KEY "MW-IX-107" "set.json-key" Warning:
        "a configuration of the folder has a key twice in one object";
        "it was edited by hand, or made so that two readers see different values";
        "keep one of the two: most readers take the last";
    SET_LAYERS "MW-IX-108" "set.layers" Warning:
        "the weights have fewer layers than the configuration says";
        "a shard is left out, or the configuration is that of a larger model";
        SAME_SOURCE;
    SET_LAYERS_MORE "MW-IX-109" "set.layers-more" Note:
        "the weights have more layers than the configuration says";
        "layers that only another program uses, or a configuration that cuts the model";
        "loaders leave them out without a word; correct the configuration, if that is not wanted";
    SET_NO_INDEX "MW-IX-110" "set.no-index" Note:
        "all shards of a set are there, and no index names them";
        "the index was not downloaded, or the writer makes none";
        "fetch the index, too: some loaders do not read shards without it";
    SET_ORPHAN_SHARD "MW-IX-111" "set.orphan-shard" Warning:
        "a file has the name of a shard, and the index does not name it";
        "shards of an older version of the model were left, or the index is older than the shards";
        "remove it, or fetch shards and index again together";
    SET_SHARD_DTYPE "MW-IX-112" "set.shard-dtype" Note:
        "one shard has another dtype than the others";
        "shards of two versions of a model lie together";
        "compare the shards with those of the source";
    SET_SHARD_METADATA "MW-IX-113" "set.shard-metadata" Note:
        "the shards of a set say differently by what they were written";
        "shards of two programs or of two versions of a model lie together";
        "compare the shards with those of the source";
    SET_TIED "MW-IX-114" "set.tied" Note:
        "an output layer is stored that the configuration ties to the embedding";
        "the model was trained or saved with the two apart, or the writer stores both";
        "loaders use the embedding and leave it out; set tie_word_embeddings to false, if they differ";
    SET_TOKENIZER_MISSING "MW-IX-115" "set.tokenizer-missing" Note:
        "there is no tokenizer beside the weights of a model of text";
        NOT_FETCHED;
        "fetch the files of the tokenizer, too, if the folder is to be used as it is";
    SET_TOKENIZER_SIZE "MW-IX-116" "set.tokenizer-size" Warning:
        "the tokenizer has tokens for which the embedding has no row";
        "tokens were added and the embedding was not resized, or the tokenizer is that of another model";
        "resize the embedding with the library that loads the model, or take the tokenizer that belongs to it";
    SET_VOCABULARY "MW-IX-117" "set.vocabulary" Warning:
        "the embedding has not as many rows as the vocabulary of the configuration";
        OTHER_MODEL;
        SAME_SOURCE;
}
