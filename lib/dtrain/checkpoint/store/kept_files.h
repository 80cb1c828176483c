// Files of a Hugging Face folder that a run copies when it starts, so that its exports contain them.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::checkpoint::store {

/// The files that a run copies, as far as the folder has them: configuration and generation settings,
/// for their token ids, and the tokenizer.
inline constexpr std::array<std::string_view, 10> kKeptFiles{"config.json",
                                                             "generation_config.json",
                                                             "tokenizer.json",
                                                             "tokenizer_config.json",
                                                             "special_tokens_map.json",
                                                             "added_tokens.json",
                                                             "vocab.json",
                                                             "merges.txt",
                                                             "tokenizer.model",
                                                             "chat_template.jinja"};

/// One of them.
struct KeptFile {
  std::string name;
  std::string content;
};

/// RUN/init-from, which holds the copies.
[[nodiscard]] std::string kept_files_folder(const std::string& run_dir);

/// Returns the folder whose files belong to the weights: the Hugging Face folder of a model file, or
/// kept_files_folder of the run that saved the model file or checkpoint. Empty if there is none.
///
/// Throws: Error{checkpoint} naming the file, as WeightFile::open and
///         config::hugging_face_model_in.
[[nodiscard]] std::string companion_folder(const std::string& weights);

/// Reads the kKeptFiles in a folder, in their order. Empty if `folder` is empty.
///
/// Throws: Error{checkpoint} naming a file that cannot be read.
[[nodiscard]] std::vector<KeptFile> read_kept_files(const std::string& folder);

/// Null if there is no file of this name.
[[nodiscard]] const KeptFile* find_kept_file(const std::vector<KeptFile>& files,
                                             std::string_view name);

}  // namespace dtrain::checkpoint::store
