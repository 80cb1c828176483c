// The value of data.train: one file, or several with weights.
#pragma once

#include <string>
#include <vector>

namespace dtrain::config {

struct WeightedFile {
  std::string path;
  double weight = 1;
};

/// "book.dtok" gives one file, "a.dtok:0.7,b.dtok:0.3" two. A file that has the whole text as its
/// name is one.
///
/// Throws: Error{usage} naming the part that has no weight, or one that is not above 0.
[[nodiscard]] std::vector<WeightedFile> parse_mixture(const std::string& text);

/// The inverse.
[[nodiscard]] std::string mixture_text(const std::vector<WeightedFile>& files);

}  // namespace dtrain::config
