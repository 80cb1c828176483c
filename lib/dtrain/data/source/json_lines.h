// Documents that stand in a field of JSON objects, one in a line.
#pragma once

#include <string>
#include <vector>

#include "dtrain/data/source/blocks.h"

namespace dtrain::data {

/// As parts_of. Blank lines are passed over.
[[nodiscard]] std::vector<Part> documents_of_lines(const Block& block, const LineRule& rule,
                                                   std::string& storage);

}  // namespace dtrain::data
