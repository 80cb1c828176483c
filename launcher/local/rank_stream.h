// Relays one output stream of a rank to the console and to a log.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/io/descriptor.h"
#include "launcher/output/log_writer.h"
#include "launcher/output/shared_output.h"

namespace launcher {

/// Splits a stream at '\n' and, if live, at '\r' as well: a text that ends with '\r' is a progress
/// line, which the next one overwrites.
class LineSplitter {
 public:
  /// Splits longer lines, so that a stream without line ends needs no more memory than this.
  static constexpr std::size_t kMaxLine = std::size_t{1} << 20;

  explicit LineSplitter(bool live) : ends_(live ? "\n\r" : "\n") {}

  /// Calls emit(text, is_live) for each line completed by `bytes`, without its end.
  template <typename Emit>
  void feed(std::string_view bytes, Emit&& emit) {
    for (;;) {
      const auto at = bytes.find_first_of(ends_);
      if (at == std::string_view::npos) break;
      const bool is_live = bytes[at] == '\r' && bytes.substr(at + 1, 1) != "\n";
      const auto skipped = at + (bytes[at] == '\r' && !is_live ? 2 : 1);
      if (partial_.empty()) {
        emit(bytes.substr(0, at), is_live);
      } else {
        partial_.append(bytes.substr(0, at));
        emit(std::string_view(partial_), is_live);
        partial_.clear();
      }
      bytes.remove_prefix(skipped);
    }
    partial_.append(bytes);
    if (partial_.size() >= kMaxLine) finish(emit);
  }

  /// Emits an unterminated last line.
  template <typename Emit>
  void finish(Emit&& emit) {
    if (partial_.empty()) return;
    emit(std::string_view(partial_), false);
    partial_.clear();
  }

 private:
  std::string_view ends_;
  std::string partial_;
};

/// Splits off the next word, with the space after it.
inline std::string_view take_word(std::string_view& line) {
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(std::min(line.size(), word.size() + 1));
  return word;
}

struct RankStreamOptions {
  Stream stream = Stream::output;
  std::string prefix;  // before each line on the console
  bool shown = true;   // on the console
  bool live = false;   // text ending in '\r' is the console's live line
  Log log;             // receives every byte unchanged
};

/// Reads a rank's pipe. Keeps the last lines for the report on a failure.
class RankStream {
 public:
  /// The stream of another node's rank, which its launcher reads.
  RankStream() : RankStream({}, {}) {}
  RankStream(dtrain::base::Descriptor pipe, RankStreamOptions options);

  [[nodiscard]] int fd() const { return pipe_.get(); }
  [[nodiscard]] bool open() const { return static_cast<bool>(pipe_); }
  [[nodiscard]] bool live() const { return options_.live; }
  [[nodiscard]] bool shown() const { return options_.shown; }
  /// Returns the columns that a terminal has left beside the prefix.
  [[nodiscard]] int columns_left(int columns) const {
    return std::max(1, columns - static_cast<int>(options_.prefix.size()));
  }
  [[nodiscard]] const std::string& prefix() const { return options_.prefix; }
  /// Shows later lines without the prefix.
  void drop_prefix() { options_.prefix.clear(); }
  /// Reads up to one buffer. Returns whether anything was read. Closes at end of file.
  bool read(SharedOutput& console);
  /// Reads the pipe's content; stops after a bounded amount, even if the process keeps writing.
  void drain(SharedOutput& console);
  /// Adds a line as if the rank had written it. prefix: on the console; nullopt: not shown there.
  void insert(SharedOutput& console, std::string_view line, std::optional<std::string_view> prefix);
  /// Drains the pipe, prints an unterminated last line, and closes.
  void finish(SharedOutput& console);

  [[nodiscard]] const std::deque<std::string>& last_lines() const { return last_lines_; }
  /// Sets the last lines of another node's rank.
  void set_last_lines(const std::vector<std::string>& lines) {
    last_lines_.assign(lines.begin(), lines.end());
  }

 private:
  void take(SharedOutput& console, std::string_view text, bool is_live);
  void keep(std::string_view line);

  dtrain::base::Descriptor pipe_;
  RankStreamOptions options_;
  LineSplitter splitter_;
  std::deque<std::string> last_lines_;
};

}  // namespace launcher
