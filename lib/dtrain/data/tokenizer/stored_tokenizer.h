// How tokenizers lie in folders: of runs, of exported models, and of Hugging Face.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/data/tokenizer/tokenizer.h"

namespace dtrain::data {

/// Names of all files that keep tokenizers.
inline constexpr std::string_view kTokenizerFiles[] = {"tokenizer.model", "tokenizer.json",
                                                       "tokenizer_config.json"};

/// A tokenizer in a folder.
struct StoredTokenizer {
  std::string path;   ///< of its main file
  std::string model;  ///< Tokenizer::model
};

/// Returns its fingerprint, as identity_of of its kind and model.
[[nodiscard]] std::string identity_of(const StoredTokenizer& tokenizer);

/// Opens the tokenizer of a model.
///
/// Throws: as the other open_tokenizer; advises to copy the model's file again if it is none.
[[nodiscard]] std::shared_ptr<const Tokenizer> open_tokenizer(const StoredTokenizer& tokenizer);

/// Returns the main file's name: "tokenizer.model" or "tokenizer.json".
[[nodiscard]] std::string_view tokenizer_file_name(TokenizerKind kind);

/// Returns the names and contents of the files that keep a tokenizer with this model: a
/// SentencePiece model, or tokenizer.json unchanged and a tokenizer_config.json that names the
/// token between documents as eos_token. Empty for an empty model.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> files_of_tokenizer(
    std::string_view model);

/// Returns the tokenizer that lies in a folder, a SentencePiece model before a tokenizer.json, with
/// the eos_token of tokenizer_config.json.
///
/// Throws: Error{usage} naming a file that cannot be read or is not JSON.
[[nodiscard]] std::optional<StoredTokenizer> tokenizer_in(const std::string& folder);
/// The same for one kind, sentencepiece or hugging_face.
[[nodiscard]] std::optional<StoredTokenizer> tokenizer_in(const std::string& folder,
                                                          TokenizerKind kind);

/// Returns the tokenizer in the folder of a model file or checkpoint, or in the folder above, which
/// is that of a run. The path may be a link to a checkpoint.
///
/// Throws: as tokenizer_in; StorageError if the storage does not respond.
[[nodiscard]] std::optional<StoredTokenizer> tokenizer_near(const std::string& weights);
/// The same for one kind, sentencepiece or hugging_face.
[[nodiscard]] std::optional<StoredTokenizer> tokenizer_near(const std::string& weights,
                                                            TokenizerKind kind);

}  // namespace dtrain::data
