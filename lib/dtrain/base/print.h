// Prints text to standard output.
#pragma once

#include <string_view>

namespace dtrain::base {

/// Writes text to standard output, at once. Returns false if its reader wants no more (`| head`),
/// which is no error.
///
/// Throws: Error{usage} if it cannot be written (full disk).
bool print(std::string_view text);

}  // namespace dtrain::base
