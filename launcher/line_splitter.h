// Splits bytes that come in pieces of any size into lines, and lines into words.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace launcher {

/// Cuts a stream at '\n' and, when live, at '\r' as well: a text that ends with '\r' is a progress
/// line, to be drawn over by the next one.
class LineSplitter {
 public:
  /// A longer line is cut, so that a stream without line ends needs no more memory than this.
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

  /// Emits a last line that has no end.
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

}  // namespace launcher
