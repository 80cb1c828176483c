// RUN/metrics.jsonl: one JSON object a line, each written as soon as it is known.
#pragma once

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace dtrain::metrics {

/// Throws: Error{data} naming the file if it cannot be created or written.
class MetricsFile {
 public:
  explicit MetricsFile(std::string path);

  /// Appends one line; it has left the process on return. Numbers keep every bit; a number that is
  /// not finite becomes a string ("nan", "inf", "-inf"), since JSON has none.
  void write(const nlohmann::ordered_json& line);

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Closer> file_;
};

/// A number as metrics.jsonl writes it.
[[nodiscard]] nlohmann::ordered_json json_number(double value);

}  // namespace dtrain::metrics
