#include "dtrain/report/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace dtrain::report {
namespace {

// The order of metrics.jsonl; others follow by name.
constexpr std::string_view kFirstKeys[] = {"loss", "val_loss", "grad_norm", "learning_rate"};

// A field that RFC 4180 would not take as it is.
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

std::string number(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{}", value);  // whatever the NaN's sign
}

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

std::string csv_of(const std::vector<RunRecord>& runs) {
  const std::vector<std::string> keys = keys_of(runs);
  std::string text(kCsvMark);
  for (const std::string& key : keys) text += ',' + field(key);
  text += '\n';
  for (const RunRecord& run : runs) add_lines(run, keys, text);
  return text;
}

}  // namespace dtrain::report
