// Interface of libdtrain-unicode.so, which wraps PCRE2 and ICU: regular expressions and NFC. Only
// Hugging Face tokenizers need it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::data {

/// Bytes [begin, end) of a text.
struct ByteRange {
  std::size_t begin = 0;
  std::size_t end = 0;

  [[nodiscard]] bool is_empty() const { return begin == end; }
  [[nodiscard]] std::string_view of(std::string_view text) const {
    return text.substr(begin, end - begin);
  }
};

/// Finds the matches of a pattern. Threads: one caller.
class PatternScanner {
 public:
  /// undecided: the result depends on what follows the text. failed: the pattern exceeded the limit
  /// on backtracking or on memory.
  enum class Outcome { match, no_match, undecided, failed };

  virtual ~PatternScanner() = default;
  /// Finds the first match that begins at `from` or later.
  ///
  /// text:         UTF-8; `from` is a character boundary.
  /// may_continue: the text is only the beginning of a longer one.
  [[nodiscard]] virtual Outcome find(std::string_view text, std::size_t from, bool may_continue,
                                     ByteRange& match) = 0;
};

/// A compiled regular expression. Threads: any number of callers.
class Pattern {
 public:
  virtual ~Pattern() = default;
  /// The pattern must outlive the scanner.
  [[nodiscard]] virtual std::unique_ptr<PatternScanner> make_scanner() const = 0;
};

/// A part of a text that normalization changed: bytes `before` of the text became bytes `after` of
/// the normalized text.
struct Replacement {
  ByteRange before;
  ByteRange after;
};

/// Threads: any number of callers.
class UnicodeLibrary {
 public:
  virtual ~UnicodeLibrary() = default;
  /// Compiles a pattern in PCRE2's syntax; returns null and sets `error` if it is invalid.
  [[nodiscard]] virtual std::unique_ptr<Pattern> compile(std::string_view pattern,
                                                         std::string& error) const = 0;
  /// Converts UTF-8 to NFC of Unicode 9 and returns true; returns false if the text is in NFC
  /// already. Characters of later versions of Unicode are copied. changes: may be null.
  [[nodiscard]] virtual bool normalize(std::string_view text, std::string& normalized,
                                       std::vector<Replacement>* changes) const = 0;
  /// Returns whether text before this character never changes its normalized form.
  [[nodiscard]] virtual bool begins_segment(char32_t character) const = 0;
};

/// Returns the library, loaded on first use and never unloaded.
///
/// Throws: Error{usage} naming the file that cannot be loaded, and why.
[[nodiscard]] const UnicodeLibrary& unicode_library();

}  // namespace dtrain::data

/// The library's entry point.
extern "C" const dtrain::data::UnicodeLibrary& dtrain_unicode_library();
