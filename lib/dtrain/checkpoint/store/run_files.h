// Distinguishes a run's files from foreign files under the same names.
#pragma once

#include <string>
#include <string_view>

namespace dtrain::checkpoint::store {

/// Refuses a run folder in which dtrain would replace or remove what it did not write: looks for
/// the marks that every build has left in config.json, metrics.jsonl and final/model.safetensors. A
/// file that is empty or missing is no loss.
///
/// flag: what would replace them, for the message.
/// Throws: Error{usage} naming the file, and what to do.
void check_run_files(const std::string& run_dir, std::string_view flag);

}  // namespace dtrain::checkpoint::store
