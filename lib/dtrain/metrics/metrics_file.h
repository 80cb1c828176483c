// RUN/metrics.jsonl: one JSON object a line, each written as soon as it is known.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace dtrain::metrics {

/// Throws: Error{data} naming the file if it cannot be opened or written.
class MetricsFile {
 public:
  enum class Start {
    empty,    ///< a file that is there loses its content
    appended  ///< lines go after those that are there
  };
  MetricsFile(std::string path, Start start);

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

/// Removes from the first line that tells of a later step than `step` on, and a last line that was
/// cut short: a run that goes on from `step` writes them anew. A file that does not exist is left
/// so.
///
/// Throws: Error{data} naming the file if it cannot be read or cut.
void cut_back(const std::string& path, std::int64_t step);

/// A number as metrics.jsonl writes it.
[[nodiscard]] nlohmann::ordered_json json_number(double value);

}  // namespace dtrain::metrics
