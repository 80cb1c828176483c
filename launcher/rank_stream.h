// One output stream of one rank, on its way to the console and to a file.
#pragma once

#include <deque>
#include <string>

#include "launcher/console.h"
#include "launcher/descriptor.h"
#include "launcher/line_splitter.h"

namespace launcher {

struct RankStreamOptions {
  Stream stream = Stream::output;
  std::string prefix;  // before each line on the console
  bool shown = true;   // on the console
  bool live = false;   // text ending in '\r' is the console's live line
  Descriptor file;     // takes every byte as it came; none: no file
  std::string file_name;
};

/// Reads the pipe a rank writes into. Keeps the last lines for the report on a failure.
class RankStream {
 public:
  RankStream(Descriptor pipe, RankStreamOptions options);

  [[nodiscard]] int fd() const { return pipe_.get(); }
  [[nodiscard]] bool open() const { return static_cast<bool>(pipe_); }
  [[nodiscard]] bool live() const { return options_.live; }
  /// Takes what is there, up to one buffer. Returns whether there was anything; closes at the end.
  bool read(Console& console);
  /// Takes all that is there, prints a last line without end, and closes.
  void finish(Console& console);

  [[nodiscard]] const std::deque<std::string>& last_lines() const { return last_lines_; }

 private:
  void take(Console& console, std::string_view text, bool is_live);
  void write_file(Console& console, std::string_view bytes);

  Descriptor pipe_;
  RankStreamOptions options_;
  LineSplitter splitter_;
  std::deque<std::string> last_lines_;
};

}  // namespace launcher
