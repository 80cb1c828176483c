#include "dtrain/train/continued_text.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/data/tokenizer/tokenizer.h"

namespace dtrain::train::continued_text_test {
namespace {

// The definition: the text before the stop text that is complete first; of several, the longest.
std::string stopped(const std::string& text, const std::vector<std::string>& stops) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& stop : stops) {
      if (std::string_view(text).substr(0, end).ends_with(stop)) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

// The text in pieces of `size` bytes through StopTexts.
std::string filtered(const std::string& text, const std::vector<std::string>& stops,
                     std::size_t size) {
  StopTexts stop(stops);
  std::string shown;
  for (std::size_t begin = 0; begin < text.size(); begin += size) {
    shown += stop.add(std::string_view(text).substr(begin, size));
    // Nothing that was shown is taken back.
    CHECK(stopped(text, stops).starts_with(shown));
  }
  CHECK(stop.is_found() == (stopped(text, stops) != text));
  return shown + std::string(stop.held_back());
}

TEST_CASE("A stop text is found in pieces of any size") {
  const std::vector<std::vector<std::string>> lists{
      {},           {"b"},           {"ab", "abab"}, {"aab"},           {"aaab", "aab"},
      {"ba", "ab"}, {"abcabcabd"},   {"cab", "bca"}, {"bc", "abcabcb"}, {"zz"},
      {"\n\n"},     {"\xC3\xA9 end"}};
  for (const std::string text : {"abcabcabcabd", "aaaab", "ababab", "", "a\n\nb\n",
                                 "caf\xC3\xA9 end\xC3\xA9 en", "bcabcabcb"}) {
    for (const auto& stops : lists) {
      for (std::size_t size = 1; size <= 5; ++size) {
        INFO(text << " in pieces of " << size);
        CHECK(filtered(text, stops, size) == stopped(text, stops));
      }
    }
  }
}

TEST_CASE("Text that cannot begin a stop text is not held back") {
  const std::vector<std::string> stops{"xyz"};
  StopTexts stop(stops);
  CHECK(stop.add("abx") == "ab");
  CHECK(stop.held_back() == "x");
  CHECK(stop.add("y") == "");
  CHECK(stop.add("x") == "xy");
  CHECK(stop.add("yz ") == "");
  CHECK(stop.is_found());
  CHECK(stop.held_back() == "");
  CHECK(stop.add("more") == "");
}

// Generates 'a', 'b', 'c', ... whatever the prompt.
class Alphabet final : public model::Generator {
 public:
  const at::Tensor& step(std::int64_t /*token*/) override {
    logits_ = at::zeros({256}, at::kFloat);
    logits_[next_++] = 1;
    return logits_;
  }

 private:
  std::int64_t next_ = 'a';
  at::Tensor logits_;
};

// A byte tokenizer whose documents end with 'f'.
class EndsWithF final : public data::Tokenizer {
 public:
  data::TokenizerKind kind() const override { return data::TokenizerKind::bytes; }
  std::int64_t vocab() const override { return 256; }
  std::string_view model() const override { return {}; }
  std::optional<std::uint32_t> end_of_document() const override { return 'f'; }
  std::size_t cut(std::string_view /*text*/) const override { return 0; }
  std::string text_of(std::int64_t token) const override { return {static_cast<char>(token)}; }
  std::unique_ptr<data::Encoder> make_encoder() const override { return nullptr; }
};

std::pair<std::string, ContinuedText> continued(std::int64_t max_tokens,
                                                const std::vector<std::string>& stop,
                                                bool ignores_end) {
  Alphabet generator;
  std::string text;
  const std::vector<std::int64_t> prompt{'x'};
  const ContinuedText result = continue_text(generator, EndsWithF(), prompt,
                                             {.rule = {.temperature = 0},
                                              .max_tokens = max_tokens,
                                              .stop = stop,
                                              .ignores_end = ignores_end},
                                             [&](std::string_view piece) { text += piece; });
  return {text, result};
}

TEST_CASE("A text ends at the document's end, before a stop text, or after max_tokens") {
  const auto check = [](const std::pair<std::string, ContinuedText>& found, const std::string& text,
                        std::int64_t tokens, bool is_stopped) {
    CHECK(found.first == text);
    CHECK(found.second.num_tokens == tokens);
    CHECK(found.second.is_stopped == is_stopped);
  };
  check(continued(3, {}, false), "abc", 3, false);
  check(continued(20, {}, false), "abcde", 5, true);
  check(continued(8, {}, true), "abcdefgh", 8, false);
  check(continued(20, {"de"}, false), "abc", 5, true);
  check(continued(20, {"ghi"}, true), "abcdef", 9, true);
  check(continued(4, {"cde"}, false), "abcd", 4, false);  // within what may be a stop text
  check(continued(20, {"eg"}, false), "abcde", 5, true);
}

}  // namespace
}  // namespace dtrain::train::continued_text_test
