#include "dtrain/report/run_record.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <set>
#include <system_error>

#include "dtrain/base/error.h"
#include "dtrain/base/log.h"

namespace dtrain::report {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMetricsName = "metrics.jsonl";

std::optional<double> number_in(const Json& value) {
  using Limits = std::numeric_limits<double>;
  if (value.is_number()) return value.get<double>();
  if (value == "nan") return Limits::quiet_NaN();
  if (value == "inf") return Limits::infinity();
  if (value == "-inf") return -Limits::infinity();
  return std::nullopt;
}

// Adds a value to a curve; returns false if it is not a number.
bool add(RunRecord& run, std::string_view key, std::int64_t step, const Json& value) {
  const std::optional<double> number = number_in(value);
  if (!number) return false;
  Curve& curve = run.curves[std::string(key)];
  curve.steps.push_back(step);
  curve.values.push_back(*number);
  return true;
}

void add_evaluation(RunRecord& run, std::int64_t step, const Json& line) {
  if (add(run, "val_loss", step, line.value("val_loss", Json()))) {
    const Json data = line.value("data", Json());
    run.evaluated_data.push_back(data.is_string() ? data.get<std::string>() : "");
  }
  for (const char* key : {"bits_per_byte", "perplexity_per_word"}) {
    add(run, key, step, line.value(key, Json()));
  }
}

// Parses untrusted input; returns a discarded value if it is not JSON. Omits values that are nested
// more deeply than a run's, since copying and printing them is recursive.
template <typename Input>
Json parsed(Input&& input) {
  constexpr int kDeepest = 32;
  const auto is_kept = [](int depth, Json::parse_event_t, const Json&) {
    return depth <= kDeepest;
  };
  return Json::parse(std::forward<Input>(input), is_kept, /*allow_exceptions=*/false);
}

// Adds a line of metrics.jsonl; returns false if it is invalid.
bool take(RunRecord& run, const std::string& text) {
  Json line = parsed(text);
  if (!line.is_object()) return false;
  const auto found = line.find("step");
  const bool has_step = found != line.end() && found->is_number_integer();
  const std::int64_t step = has_step ? found->get<std::int64_t>() : 0;
  if (!line.contains("event")) {
    if (!has_step) return false;
    for (const auto& [key, value] : line.items()) {
      if (key != "step" && key != "val_loss") add(run, key, step, value);
    }
    return true;
  }
  if (line["event"] == "eval" && has_step) add_evaluation(run, step, line);
  run.events.push_back(std::move(line));
  return true;
}

// Adds the values of nested objects as texts, with dotted keys. Linear time: the file is untrusted,
// and a search for each key would be quadratic.
void flatten(const Json& object, const std::string& prefix, Json& settings) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      flatten(value, prefix + key + '.', settings);
    } else {
      settings.get_ref<Json::object_t&>().emplace_back(prefix + key, plain_text(value));
    }
  }
}

// Settings are shown, not checked: another build may have written the file.
void read_settings(const std::string& path, RunRecord& run) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return;  // opening a FIFO would block
  std::ifstream file(path, std::ios::binary);
  const Json config = parsed(file);
  if (!config.is_object()) return;
  const auto resolved = config.find("resolved");
  flatten(resolved == config.end() ? config : *resolved, "", run.settings);
  // The saved values for later launches have full paths and omit settings of a single launch.
  Json asked = Json::object();
  flatten(config, "", asked);
  for (const char* key : {"data.train", "data.validation", "checkpoint.init_from",
                          "checkpoint.resume", "run.overwrite"}) {
    if (run.settings.contains(key) && asked.contains(key)) run.settings[key] = asked[key];
  }
}

[[noreturn]] void refuse_folder(const std::string& folder) {
  std::error_code error;
  const bool path_exists = fs::exists(folder, error);
  const bool is_file = path_exists && !fs::is_directory(folder, error);
  if (path_exists && !is_file && ::access(folder.c_str(), R_OK | X_OK) != 0) {
    base::fail(base::ErrorKind::data, "{}: {}", folder, std::strerror(errno));
  }
  base::fail(
      base::ErrorKind::data, "{}: {}; give run folders, or a folder of runs", folder,
      is_file ? "it is a file, not a run folder"
      : path_exists
          ? "it holds no metrics.jsonl, and no folder below does, so no run was started there"
          : "no such file or folder");
}

std::string name_of(const std::string& folder) {
  std::error_code error;
  const fs::path whole = fs::absolute(folder, error).lexically_normal();  // "." has no name
  const std::string name = (whole.has_filename() ? whole : whole.parent_path()).filename().string();
  return name.empty() ? folder : name;
}

// The first columns, in the order of metrics.jsonl; others follow by name.
constexpr std::string_view kFirstKeys[] = {"loss", "val_loss", "grad_norm", "learning_rate"};

// Quotes a field if RFC 4180 requires it.
std::string field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == text.npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::vector<std::string> keys_of(const std::vector<RunRecord>& runs) {
  std::set<std::string> all;
  for (const RunRecord& run : runs) {
    for (const auto& [key, curve] : run.curves) all.insert(key);
  }
  std::vector<std::string> keys;
  for (const std::string_view key : kFirstKeys) {
    if (all.erase(std::string(key)) > 0) keys.emplace_back(key);
  }
  keys.insert(keys.end(), all.begin(), all.end());
  return keys;
}

// "nan" for any NaN, whatever its sign.
std::string number(double value) { return std::isnan(value) ? "nan" : fmt::format("{}", value); }

void add_lines(const RunRecord& run, const std::vector<std::string>& keys, std::string& text) {
  std::set<std::int64_t> steps;
  for (const auto& [key, curve] : run.curves) steps.insert(curve.steps.begin(), curve.steps.end());
  std::vector<std::size_t> places(keys.size(), 0);  // of each curve
  for (const std::int64_t step : steps) {
    text += fmt::format("{},{}", field(run.name), step);
    for (std::size_t key = 0; key < keys.size(); ++key) {
      text += ',';
      const auto found = run.curves.find(keys[key]);
      if (found == run.curves.end()) continue;
      const Curve& curve = found->second;
      std::size_t& place = places[key];
      while (place < curve.size() && curve.steps[place] < step) ++place;
      if (place < curve.size() && curve.steps[place] == step) text += number(curve.values[place]);
    }
    text += '\n';
  }
}

}  // namespace

std::int64_t RunRecord::last_step() const {
  std::int64_t last = 0;
  for (const auto& [key, curve] : curves) {
    if (!curve.steps.empty()) last = std::max(last, curve.steps.back());
  }
  return last;
}

std::vector<const Json*> RunRecord::events_named(std::string_view event) const {
  std::vector<const Json*> found;
  for (const Json& line : events) {
    if (line["event"] == event) found.push_back(&line);
  }
  return found;
}

bool is_run(const std::string& folder) {
  std::error_code error;
  return fs::is_regular_file(fs::path(folder) / kMetricsName, error);
}

RunRecord read_run(const std::string& folder) {
  const std::string path = (fs::path(folder) / kMetricsName).string();
  std::error_code error;
  if (!is_run(folder)) refuse_folder(folder);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) base::fail(base::ErrorKind::data, "{}: {}", path, std::strerror(errno));
  RunRecord run{.folder = folder, .name = name_of(folder)};
  // A last line without a newline is still being written.
  for (std::string line; std::getline(file, line) && !file.eof();) {
    if (!take(run, line)) ++run.num_unreadable;
  }
  if (file.bad()) base::fail(base::ErrorKind::data, "{}: cannot be read", path);
  if (run.curves.empty() && run.events.empty()) {
    base::fail(base::ErrorKind::data, "{}: it has no record of a run yet", path);
  }
  read_settings((fs::path(folder) / "config.json").string(), run);
  run.wants_requeue = fs::exists(fs::path(folder) / "REQUEUE", error);
  return run;
}

std::vector<std::string> runs_below(const std::string& folder, int depth) {
  std::map<fs::path, std::string> found;  // by the target of links
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, fs::directory_options::skip_permission_denied,
                                         error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    const std::string path = entry->path().string();
    std::error_code unknown;
    const bool is_link = fs::is_symlink(entry->symlink_status(unknown));
    const bool is_taken = is_run(path);
    if (is_taken || entry.depth() + 1 >= depth) entry.disable_recursion_pending();
    if (!is_taken) {
      if (entry->is_directory(unknown) && ::access(path.c_str(), R_OK | X_OK) != 0) {
        base::log_warning("skipped: {}: {}", path, std::strerror(errno));
      }
      continue;
    }
    std::string& name = found[fs::weakly_canonical(path, unknown)];
    if (name.empty() || !is_link) name = path;
  }
  if (std::error_code unknown; error && fs::is_directory(folder, unknown)) {
    base::log_warning("{}: cannot be searched completely for runs: {}", folder, error.message());
  }
  std::vector<std::string> runs;
  for (const auto& [whole, path] : found) runs.push_back(path);
  std::ranges::sort(runs, [](const std::string& a, const std::string& b) {
    return ::strverscmp(a.c_str(), b.c_str()) < 0;  // run-2 before run-10
  });
  return runs;
}

void make_names_unique(std::vector<RunRecord>& runs) {
  std::map<std::string, int> counts;
  for (const RunRecord& run : runs) ++counts[run.name];
  for (RunRecord& run : runs) {
    if (counts[run.name] > 1) run.name = run.folder;
  }
}

std::string plain_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

Json json_number(double value) { return std::isfinite(value) ? Json(value) : Json(number(value)); }

std::string csv_of(const std::vector<RunRecord>& runs) {
  const std::vector<std::string> keys = keys_of(runs);
  std::string text(kCsvMark);
  for (const std::string& key : keys) text += ',' + field(key);
  text += '\n';
  for (const RunRecord& run : runs) add_lines(run, keys, text);
  return text;
}

}  // namespace dtrain::report
