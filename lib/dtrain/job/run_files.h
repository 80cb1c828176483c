// Paths of files in a run folder, other than checkpoints.
#pragma once

#include <string>

namespace dtrain::job {

/// RunFolder::request_requeue writes it.
[[nodiscard]] inline std::string requeue_file(const std::string& run_dir) {
  return run_dir + "/REQUEUE";
}
/// A user creates it to stop the run.
[[nodiscard]] inline std::string stop_file(const std::string& run_dir) { return run_dir + "/STOP"; }
[[nodiscard]] inline std::string metrics_file(const std::string& run_dir) {
  return run_dir + "/metrics.jsonl";
}
/// Folder of TensorBoard event files.
[[nodiscard]] inline std::string event_folder(const std::string& run_dir) {
  return run_dir + "/tensorboard";
}
/// Trace file of --profile, in a folder that exists.
[[nodiscard]] inline std::string trace_file(const std::string& run_dir) {
  return run_dir + "/profile/trace.json";
}

}  // namespace dtrain::job
