// RUN/config.json: the requested and the resolved settings of a run, and how it was started
// (docs/guide/configuration.md). Also the request from the front end to libdtrain.so.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/config/config.h"
#include "dtrain/config/schema/schema.h"

namespace dtrain::config {

/// Keys of config.json that are not settings. Files given to --config may contain them; they are
/// ignored there.
inline constexpr std::string_view kResolvedKey = "resolved";
inline constexpr std::string_view kProvenanceKey = "provenance";
inline constexpr std::string_view kSkippedCheckpointsKey = "passed_over";

/// Checkpoints that a start skipped because they could not be read from storage. The start repeats
/// their steps; checkpoints that it saves itself at these steps are valid.
struct SkippedCheckpoints {
  std::string run;  ///< ID of the start that skipped them
  std::vector<std::int64_t> steps = {};

  /// True if the checkpoint of `step`, written by the start `written_by`, is one of them.
  [[nodiscard]] bool contains(std::int64_t step, std::string_view written_by) const;
};

/// Facts about a start besides the resolved configuration.
struct StartRecord {
  std::optional<Config> requested = {};  ///< before resolve(); absent if it equals the resolved one
  std::string provenance = "{}";         ///< a JSON object: version, command line, host, ...
  // --quiet and --verbose, which are not settings and are not saved.
  bool is_quiet = false;
  bool is_verbose = false;
  SkippedCheckpoints skipped = {};
};

/// `requested` for reuse by another start in any directory: makes paths absolute, and resets
/// settings that apply to one start only (run.overwrite, checkpoint.resume, checkpoint.new_data).
///
/// Throws: Error{usage} naming the current folder if its path is not UTF-8, or contains a comma and
///         data.train is a mixture: such paths cannot be saved.
[[nodiscard]] Config reusable_settings(Config requested);

/// The text of config.json. Its settings are the requested ones, so that it can be given to --config
/// on any number of ranks; the resolved ones are in a separate section.
///
/// Throws: Error{usage} as reusable_settings.
[[nodiscard]] std::string config_file_text(const Config& resolved, const StartRecord& record);

/// The contents of a run's config.json.
struct SavedRun {
  Config requested;
  Config resolved;
  std::int64_t ranks = 0;  ///< of the latest start; 0 if unknown
};

/// Returns the kernels with which to continue a run whose command does not choose: `plain` if the run
/// has computed with them on a CPU, although `auto` may mean fused kernels by now.
[[nodiscard]] Kernels kernels_of(const SavedRun& saved);

/// Throws: Error{usage} naming the file, as for a configuration file.
[[nodiscard]] SavedRun read_saved_run(const std::string& path);

/// Parses the JSON value of kSkippedCheckpointsKey. Returns no checkpoints for empty or invalid
/// text.
[[nodiscard]] SkippedCheckpoints skipped_checkpoints_in(std::string_view text);

/// Returns the path of the resumed run's config.json. With --resume auto it is in the run folder;
/// with --resume PATH it belongs to the run at PATH, or to the run of the checkpoint at PATH. Empty
/// if no run is resumed.
[[nodiscard]] std::string resumed_config_file(const Config& config);

/// The settings that `command` uses, as an indented JSON object {"model": {"name": ...}, ...} in
/// schema order, without a final newline. Numbers round-trip exactly.
[[nodiscard]] std::string to_json(Command command, const Config& config);

/// The inverse of to_json. Settings that the text lacks get their defaults; settings that only older
/// builds knew are ignored.
///
/// Throws: Error{usage} as for a configuration file.
[[nodiscard]] Config from_json(std::string_view text);

/// Returns the model's settings as a JSON object in one line.
[[nodiscard]] std::string model_to_json(const ModelConfig& model);

/// The inverse of model_to_json. Checks ranges, and the settings against each other.
///
/// Throws: Error{usage} as for a configuration file.
[[nodiscard]] ModelConfig model_from_json(std::string_view json);

/// The front end's request to libdtrain.so (runtime.h).
struct Request {
  Command command = Command::train;
  Config config;
  StartRecord record = {};
};

/// {"command": "train", "config": {...}, "asked": {...}, "provenance": {...}, "quiet": false, "verbose": false}
[[nodiscard]] std::string to_request(const Request& request);
[[nodiscard]] Request from_request(std::string_view text);

}  // namespace dtrain::config
