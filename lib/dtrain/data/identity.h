// Identifies the data of a run in a short text that checkpoints keep and ranks compare.
#pragma once

#include <string>
#include <string_view>

#include "dtrain/data/split.h"

namespace dtrain::data {

/// Equal texts mean equal samples, down to the last token: each holds the number of samples, the
/// range of tokens, and the checksum (XXH3) of all tokens of its file.
struct DataIdentity {
  std::string training;
  std::string validation;  ///< "none" without validation
};

/// Reads every file of the split once, at the speed of the disk.
[[nodiscard]] DataIdentity identify(const Split& split);

/// Both in one text, as checkpoints keep them.
[[nodiscard]] std::string to_text(const DataIdentity& identity);

/// Parses the text in a checkpoint. In a text of another form all is `training`, and `validation`
/// is empty.
[[nodiscard]] DataIdentity identity_from(std::string_view text);

/// Returns whether a checkpoint's `training` has the form used before checksums: its number of
/// samples and a fingerprint of some of them.
[[nodiscard]] bool is_without_checksum(std::string_view training);

}  // namespace dtrain::data
