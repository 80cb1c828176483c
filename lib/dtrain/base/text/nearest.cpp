#include "dtrain/base/text/nearest.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <vector>

namespace dtrain::base {
namespace {

constexpr std::size_t kLongestName = 64;
constexpr std::size_t kFewestLetters = 3;  // fewer are too ambiguous to complete a name

using Words = std::vector<std::string>;

// "--Save_every" -> {"save", "every"}.
Words words_in(std::string_view name) {
  Words words;
  bool is_open = false;
  for (const char c : name) {
    const auto letter = static_cast<unsigned char>(c);
    const bool separates = c == '-' || c == '_' || c == '.' || c == ' ';
    if (!separates && !is_open) words.emplace_back();
    if (!separates) words.back() += static_cast<char>(std::tolower(letter));
    is_open = !separates;
  }
  return words;
}

std::string joined(const Words& words) {
  std::string text;
  for (const std::string& word : words) text += word;
  return text;
}

// Optimal string alignment distance.
std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last(b.size() + 1);
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> current(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({last[j] + 1, current[j - 1] + 1, change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        current[j] = std::min(current[j], before_last[j - 2] + 1);
      }
    }
    std::swap(before_last, last);
    std::swap(last, current);
  }
  return last[b.size()];
}

// The edit distance of two words; empty beyond a third of the letters.
std::optional<std::size_t> distance_of_words(const std::string& a, const std::string& b) {
  const std::size_t distance = edits(a, b);
  if (distance <= std::max<std::size_t>(1, a.size() / 3)) return distance;
  const bool is_short_form =
      std::min(a.size(), b.size()) >= kFewestLetters && (a.starts_with(b) || b.starts_with(a));
  return is_short_form ? std::optional<std::size_t>(2) : std::nullopt;
}

// Every word must be similar: "save-every" and "eval-every" share most letters but differ in
// meaning.
std::optional<std::size_t> distance(const Words& a, const Words& b) {
  if (a.size() != b.size()) {
    const std::string whole = joined(a);
    const std::size_t found = edits(whole, joined(b));
    const bool is_near = found <= std::max<std::size_t>(1, whole.size() / 5);
    return is_near ? std::optional(found) : std::nullopt;
  }
  if (std::is_permutation(a.begin(), a.end(), b.begin())) return a == b ? 0 : 1;
  std::size_t sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto part = distance_of_words(a[i], b[i]);
    if (!part) return std::nullopt;
    sum += *part;
  }
  return sum;
}

// The one candidate that begins as the word does: "warmup" for "warmup-steps".
std::string_view completed(const std::string& beginning,
                           std::span<const std::string_view> candidates) {
  std::string_view found;
  if (beginning.size() < kFewestLetters) return found;
  for (const std::string_view candidate : candidates) {
    if (!joined(words_in(candidate)).starts_with(beginning)) continue;
    if (!found.empty()) return {};
    found = candidate;
  }
  return found;
}

}  // namespace

std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates) {
  std::string_view best;
  const Words words = words_in(word);
  if (word.size() > kLongestName || words.empty()) return best;
  std::optional<std::size_t> fewest;
  for (const std::string_view candidate : candidates) {
    const auto found = distance(words, words_in(candidate));
    if (!found || (fewest && *found >= *fewest)) continue;
    fewest = found;
    best = candidate;
  }
  return fewest ? best : completed(joined(words), candidates);
}

std::string did_you_mean(std::string_view name) {
  return name.empty() ? std::string() : ": did you mean " + std::string(name) + "?";
}

}  // namespace dtrain::base
