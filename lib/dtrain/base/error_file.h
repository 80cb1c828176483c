// Writes why a rank failed where torchrun, and programs like it, look for it.
#pragma once

#include <string>
#include <string_view>

namespace dtrain::base {

/// Writes `message` to the file that TORCHELASTIC_ERROR_FILE names, if it is set, as
/// torch.distributed.elastic does: its time is that of this call, and what stands where Python's
/// call stack would is shown to the user. The file is readable for its owner alone. A link or
/// another user's file is left as it is; then, as for any other failure, nothing is written.
void write_error_file(std::string_view message) noexcept;

/// A JSON string of `text`, in ASCII: other characters become '?'.
[[nodiscard]] std::string json_text(std::string_view text);

/// The content of such a file, in ASCII: other characters become '?'. time: seconds since 1970.
[[nodiscard]] std::string error_file_content(std::string_view message, long long time);

}  // namespace dtrain::base
