// Prints text to standard output.
#pragma once

#include <string_view>

namespace dtrain::base {

/// Writes text to standard output, at once. A reader that wants no more (`| head`) is no error.
///
/// Throws: Error{usage} if it cannot be written (closed, full disk).
void print(std::string_view text);

}  // namespace dtrain::base
