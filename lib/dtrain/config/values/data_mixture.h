// The value of data.train: one file, or several with weights.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace dtrain::config {

/// Each file of a mixture has at least one of so many samples.
inline constexpr std::size_t kMostMixedFiles = std::size_t{1} << 16;

struct WeightedFile {
  std::string path;
  double weight = 1;
};

/// "book.dtok" gives one file, "a.dtok:0.7,b.dtok:0.3" two. A file that has the whole text as its
/// name is one; files of a mixture have no commas in their names.
///
/// Throws: Error{usage} naming the part that has no weight, or one that is not above 0; for more
///         than kMostMixedFiles files, and for weights whose sum is no number.
[[nodiscard]] std::vector<WeightedFile> parse_mixture(const std::string& text);

/// Refuses one file with a weight, which may be a mixture of which the rest is missing. Configurations
/// of older runs have some.
///
/// Throws: Error{usage}; also as parse_mixture.
void refuse_mixture_of_one(const std::string& text);

/// The inverse of parse_mixture, but for the weight of one file alone.
[[nodiscard]] std::string mixture_text(const std::vector<WeightedFile>& files);

}  // namespace dtrain::config
