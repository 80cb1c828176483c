// dtrun's own standard output and error, shared by all ranks.
#pragma once

#include <string>
#include <string_view>

namespace launcher {

enum class Stream : int { output = 1, error = 2 };

/// Lines wait here until they can be written without blocking, so that a reader who pauses never
/// keeps dtrun from seeing a rank fail. What cannot be written any more is dropped: a job does not
/// end because nobody watches.
///
/// A terminal may have one live line at its bottom: it is cleared before any other line and drawn
/// again after it.
///
/// Threads: one.
class Console {
 public:
  Console();

  /// Whether standard error is a terminal, that is, whether live() shows anything.
  [[nodiscard]] bool terminal() const { return terminal_; }
  /// The terminal's width; 80 where it does not tell.
  [[nodiscard]] int columns() const;

  void line(Stream stream, std::string_view prefix, std::string_view text);
  /// Redraws the live line.
  void live(std::string_view text);
  [[nodiscard]] bool has_live() const { return !live_.empty(); }
  /// Makes the live line an ordinary one; no effect without one.
  void commit_live(std::string_view prefix);

  /// Writes what can be written without waiting.
  void flush();
  /// Bytes that wait.
  [[nodiscard]] std::size_t pending() const {
    return output_.pending.size() + error_.pending.size();
  }

 private:
  struct Sink {
    int fd;
    std::size_t piece;  // bytes that one write may take without blocking once the fd is ready
    std::string pending;
    bool closed = false;

    explicit Sink(int descriptor);
    void flush();
  };

  [[nodiscard]] Sink& sink_of(Stream stream) {
    return stream == Stream::output && !one_terminal_ ? output_ : error_;
  }
  void hide_live();

  Sink output_;
  Sink error_;
  bool terminal_;
  bool one_terminal_;  // both are the same terminal: one queue keeps the order
  std::string live_;
  bool live_shown_ = false;
};

}  // namespace launcher
