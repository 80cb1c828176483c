// The text that generation begins with.
#pragma once

#include <cstdint>
#include <string>

#include "dtrain/config/config.h"

namespace dtrain::commands {

/// The bytes of --prompt, of standard input where that is "-", or of the file of --prompt-file,
/// which may be a pipe. Reading ends soon after max_bytes, so that an endless input ends in an
/// error.
///
/// Throws: Error{data} naming the file that cannot be read.
[[nodiscard]] std::string read_prompt(const config::GenerateConfig& generate,
                                      std::int64_t max_bytes);

}  // namespace dtrain::commands
