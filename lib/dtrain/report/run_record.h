// Reads the record of a run from its folder: metrics.jsonl and config.json; its figures as a table.
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

/// A figure over the steps at which it is known, in order. Values keep every bit; one that is not
/// finite is so here, too.
struct Curve {
  std::vector<std::int64_t> steps = {};
  std::vector<double> values = {};

  [[nodiscard]] std::size_t size() const { return steps.size(); }
};

struct RunRecord {
  std::string folder;
  std::string name;  ///< the folder's; unlike that of other runs once name_apart() has seen them
  /// By key of metrics.jsonl: of step lines, and what evaluations found.
  std::map<std::string, Curve, std::less<>> curves = {};
  /// Of each value of "val_loss": which sequences it is the loss of; empty: unknown.
  std::vector<std::string> evaluated_data = {};
  std::vector<Json> events = {};  ///< lines with an "event", in order
  /// By key, as texts: what config.json says was resolved; empty where there is none.
  Json settings = Json::object();
  bool wants_requeue = false;        ///< it was stopped early, and saved
  std::optional<bool> is_held = {};  ///< a job holds the folder's lock; empty: unknown
  std::int64_t num_unreadable = 0;   ///< lines that were skipped

  /// The last step that is told of; 0: none.
  [[nodiscard]] std::int64_t last_step() const;
  /// The events of this name.
  [[nodiscard]] std::vector<const Json*> events_named(std::string_view event) const;
};

/// Returns whether a run was started in the folder.
[[nodiscard]] bool is_run(const std::string& folder);

/// Reads a folder while its run may go on writing.
///
/// Throws: Error{data} naming the folder if it has no metrics.jsonl, or the file if it cannot be
///         read or holds nothing.
[[nodiscard]] RunRecord read_run(const std::string& folder);

/// Returns the run folders below `folder`, at most `depth` levels deep, sorted by path. A symbolic
/// link to a run counts unless the run itself is found; other links are not followed. Does not
/// search inside run folders. Skips unreadable folders with a warning.
[[nodiscard]] std::vector<std::string> runs_below(const std::string& folder, int depth);

/// Gives runs whose folders have one name their paths as names.
void name_apart(std::vector<RunRecord>& runs);

/// As metrics.jsonl has numbers: one that is not finite as a text.
[[nodiscard]] Json json_number(double value);

/// A text as it is, other JSON as one writes it.
[[nodiscard]] std::string plain_text(const Json& value);

/// First characters of a written table: a file that starts with them may be overwritten.
inline constexpr std::string_view kCsvMark = "run,step";

/// Comma-separated values: a header and a line for each step of each run, with the run's name, the
/// step, and every figure that a run has, empty where it is not known. Numbers keep every bit.
[[nodiscard]] std::string csv_of(const std::vector<RunRecord>& runs);

}  // namespace dtrain::report
