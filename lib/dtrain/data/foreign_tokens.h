// Recognises token files of other trainers, and texts that are not UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace dtrain::data {

/// A data file's kind that dtrain cannot read, and what to do about it.
struct ForeignData {
  std::string_view what = {};  ///< "UTF-16 text"; empty: nothing is recognised
  std::string advice = {};     ///< "convert it: iconv ..."
};

/// start: the first 64 KiB of the file, or all of it. path: for the advice.
[[nodiscard]] ForeignData recognise_foreign(std::string_view start, const std::string& path);

}  // namespace dtrain::data
