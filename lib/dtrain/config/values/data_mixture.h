// The value of data.train: one file, or a weighted mixture of files.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace dtrain::config {

/// Maximum number of files in a mixture.
inline constexpr std::size_t kMaxMixtureFiles = std::size_t{1} << 16;

struct WeightedFile {
  std::string path;
  double weight = 1;
};

/// Parses one file ("book.dtok") or a mixture of weighted files ("a.dtok:0.7,b.dtok:0.3"). If a
/// file exists whose name is the whole text, the result is that file. File names in a mixture must
/// not contain commas.
///
/// Throws: Error{usage} naming the item without a positive weight; also for more than
///         kMaxMixtureFiles files, and if the sum of the weights overflows.
[[nodiscard]] std::vector<WeightedFile> parse_mixture(const std::string& text);

/// As parse_mixture, for a text that was valid when it was given: if it is no mixture of several
/// files, it is the name of one file, which may contain commas and be missing now.
[[nodiscard]] std::vector<WeightedFile> mixture_or_file(const std::string& text);

/// Rejects a single file with a weight, which may be an incomplete mixture. Not called for saved
/// runs: those of older builds may contain one.
///
/// Throws: Error{usage}; also as parse_mixture.
void reject_single_file_mixture(const std::string& text);

/// The inverse of parse_mixture; omits the weight of a single file.
[[nodiscard]] std::string mixture_text(const std::vector<WeightedFile>& files);

}  // namespace dtrain::config
