// Advice for models that dtrain does not read: names of the Hugging Face hub, and GGUF files.
#pragma once

#include <string>
#include <string_view>

namespace dtrain::config {

/// For a path that does not exist and has the form of a name on the Hugging Face hub, OWNER/NAME or
/// NAME, also with a slash at its end, returns how to download the model, beginning with "; ".
/// Empty for other paths: if the first part exists or is called "runs", NAME ends as a file of
/// weights, tokens or a tokenizer does, or NAME alone contains a dot.
///
/// Throws: StorageError naming the path if the storage does not answer.
[[nodiscard]] std::string download_advice(std::string_view path);

/// Advice for GGUF files.
inline constexpr std::string_view kConvertGguf =
    "convert it with transformers (docs/guide/hugging_face.md#gguf), or give the weights that it "
    "was "
    "made from";

/// Returns the path of the first GGUF file in a folder, in the order of names; empty if there is
/// none.
[[nodiscard]] std::string gguf_file_in(const std::string& folder);

}  // namespace dtrain::config
