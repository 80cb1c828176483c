// The paths of --from, --resume and --init-from, looked at before LibTorch is loaded.
#pragma once

#include <string>
#include <string_view>

#include "dtrain/base/error.h"
#include "dtrain/config/config.h"

namespace dtrain::app {

/// Returns a model file, a checkpoint folder, or a run folder, which stands for its latest complete
/// checkpoint. A run resolves to its final model, unless it has none or has checkpoints of later
/// steps. Reads the names of checkpoints, not their files.
///
/// Throws: Error{checkpoint} naming the path and what to give instead: if it does not exist, is a
///         file of a checkpoint, or is not a run folder that holds a model.
[[nodiscard]] std::string model_path(const std::string& from);

/// Throws: Error{usage} if --from is not given.
void require_from(const std::string& from);

/// model: a result of model_path.
///
/// Throws: Error{checkpoint} naming --from and the file if it is a file, but not a model's.
void refuse_other_files(const std::string& model);

/// Calls `open`, and has the message of an error begin with `flag`: readers know the path alone.
template <typename Open>
void open_for(std::string_view flag, Open open) {
  try {
    open();
  } catch (const base::Error& error) {
    base::fail(error.kind(), "{}: {}", flag, error.what());
  }
}

/// Refuses paths that cannot be what the flags need, so that they are not taken for damaged
/// checkpoints. What is in a checkpoint is examined later.
///
/// Throws: Error{checkpoint} naming the flag, the path, what it is and what to give.
void check_start_paths(const config::Config& config);

}  // namespace dtrain::app
