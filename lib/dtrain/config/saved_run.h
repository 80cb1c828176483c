// RUN/config.json: what a run was asked for, what that became, and how it was started
// (docs/guide/configuration.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/config/config.h"
#include "dtrain/config/schema/schema.h"

namespace dtrain::config {

/// Keys of config.json that are no settings. Files given to --config may have them; they are not
/// read there.
inline constexpr std::string_view kResolvedKey = "resolved";
inline constexpr std::string_view kProvenanceKey = "provenance";
inline constexpr std::string_view kPassedOverKey = "passed_over";

/// Checkpoints that a start has passed over, since the storage did not give them: those of `steps`,
/// but for what the start `run` itself has saved there later. They belong to steps that it has
/// taken again.
struct PassedOver {
  std::string run;
  std::vector<std::int64_t> steps = {};

  [[nodiscard]] bool holds(std::int64_t step, std::string_view written_by) const;
};

/// The facts of a start besides the resolved configuration.
struct StartRecord {
  std::optional<Config> asked = {};  ///< before it was resolved; none: nothing else was asked for
  std::string provenance = "{}";     ///< a JSON object: version, command line, host, ...
  // --quiet and --verbose, which are no settings of the run and are not saved.
  bool is_quiet = false;
  bool is_verbose = false;
  PassedOver passed_over = {};
};

/// `asked` for use by another start, wherever it is made: paths are absolute, and what concerns one
/// start alone (run.overwrite, checkpoint.resume, checkpoint.new_data) is as if not given.
[[nodiscard]] Config reusable(Config asked);

/// The text of config.json. Its settings are those that were asked for, so that it can be given to
/// --config on any number of ranks; what they became stands in a section of its own.
[[nodiscard]] std::string saved_text(const Config& resolved, const StartRecord& record);

/// The contents of a run's config.json.
struct SavedRun {
  Config asked;
  Config resolved;
  std::int64_t ranks = 0;  ///< of the newest start; 0: the file does not say
};

/// Throws: Error{usage} naming the file, as a configuration file.
[[nodiscard]] SavedRun read_saved_run(const std::string& path);

/// The value of kPassedOverKey, as JSON text; empty text and any other: none.
[[nodiscard]] PassedOver passed_over_in(std::string_view text);

/// Returns the path of config.json of the run that this start resumes: the run folder with --resume
/// auto, otherwise the run, or the checkpoint's run, that --resume names. Empty if there is none.
[[nodiscard]] std::string resumed_config_file(const Config& config);

/// The settings that `command` uses, as an indented JSON object {"model": {"name": ...}, ...} in
/// the order of the schema, without a final newline. Numbers keep every bit.
[[nodiscard]] std::string to_json(Command command, const Config& config);

/// The inverse: settings that the text lacks have their defaults, and those that older builds had
/// are passed over.
///
/// Throws: Error{usage} as a configuration file.
[[nodiscard]] Config from_json(std::string_view text);

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
