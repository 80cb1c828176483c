// `dtrain data prepare`: texts to one token file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtrain::data {

struct PrepareOptions {
  /// Files, and folders whose regular files are taken recursively, sorted by path (links inside
  /// folders are not followed).
  std::vector<std::string> inputs{};
  std::string output{};    ///< the token file
  bool overwrite = false;  ///< replace an existing output
};

struct PrepareReport {
  std::int64_t num_files = 0;
  std::int64_t num_tokens = 0;
};

/// Writes the bytes of all inputs, one after the other, as a token file of vocabulary 256. The
/// output appears whole or not at all.
///
/// Throws: Error{data} naming the file that is missing, not a text, changed while being read or
///         cannot be written; Error{usage} if nothing is to be read or the output exists and
///         overwrite is off.
PrepareReport prepare(const PrepareOptions& options);

}  // namespace dtrain::data
