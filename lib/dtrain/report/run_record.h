// Reads a run's metrics.jsonl and config.json; writes the metrics of runs as CSV.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::report {

using Json = nlohmann::ordered_json;

/// The known values of a metric, in order of steps. Values keep every bit and need not be finite.
struct Curve {
  std::vector<std::int64_t> steps = {};
  std::vector<double> values = {};

  [[nodiscard]] std::size_t size() const { return steps.size(); }
};

/// The contents of a run folder.
struct RunRecord {
  std::string folder;
  std::string name;  ///< the folder's name; unique after make_names_unique()
  /// Metrics of steps and evaluations, by key of metrics.jsonl.
  std::map<std::string, Curve, std::less<>> curves = {};
  /// For each value of "val_loss", the evaluated sequences; empty if unknown.
  std::vector<std::string> evaluated_data = {};
  std::vector<Json> events = {};  ///< lines with an "event", in order
  /// The resolved settings of config.json by key, as texts; empty without the file.
  Json settings = Json::object();
  bool wants_requeue = false;        ///< the run was stopped early and saved
  std::optional<bool> is_held = {};  ///< whether a job holds the folder's lock; empty if unknown
  std::int64_t num_unreadable = 0;   ///< lines that were skipped

  /// The last recorded step; 0 if there is none.
  [[nodiscard]] std::int64_t last_step() const;
  /// The events of this name.
  [[nodiscard]] std::vector<const Json*> events_named(std::string_view event) const;
};

/// True if a run was started in the folder.
[[nodiscard]] bool is_run(const std::string& folder);

/// Reads a run folder; its run may still be writing.
///
/// Throws: Error{data} naming the folder if it has no metrics.jsonl, or the file if it cannot be
///         read or is empty.
[[nodiscard]] RunRecord read_run(const std::string& folder);

/// Returns the run folders below `folder`, at most `depth` levels deep, sorted by path. Includes a
/// run that is reached only by a symbolic link; follows no other links. Does not search inside run
/// folders. Skips unreadable folders with a warning.
[[nodiscard]] std::vector<std::string> runs_below(const std::string& folder, int depth);

/// Replaces names that several runs share with the paths of their folders.
void make_names_unique(std::vector<RunRecord>& runs);

/// Returns a number as in metrics.jsonl: a text if it is not finite.
[[nodiscard]] Json json_number(double value);

/// Returns a text unquoted, any other value as JSON.
[[nodiscard]] std::string plain_text(const Json& value);

/// The first characters of a CSV table. A file that begins with them may be overwritten.
inline constexpr std::string_view kCsvMark = "run,step";

/// Returns comma-separated values: a header, and one line for each step of each run. A line has the
/// run's name, the step, and a column for each metric of any run, empty if unknown. Numbers keep
/// every bit.
[[nodiscard]] std::string csv_of(const std::vector<RunRecord>& runs);

}  // namespace dtrain::report
