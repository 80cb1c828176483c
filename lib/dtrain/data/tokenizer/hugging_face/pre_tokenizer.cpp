#include "dtrain/data/tokenizer/hugging_face/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/text/text.h"
#include "dtrain/data/tokenizer/hugging_face/unicode_ranges.h"
#include "dtrain/data/tokenizer/utf8.h"

namespace dtrain::data {
namespace {

using Behavior = SplitStep::Behavior;
using Kind = SplitStep::Kind;

/// The character that begins at `at`, as a range.
ByteRange character_at(std::string_view text, std::size_t at) {
  std::size_t end = at + 1;
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
  return {.begin = at, .end = end};
}

bool is_digit_at(std::string_view text, ByteRange character) {
  const char first = text[character.begin];
  if (static_cast<unsigned char>(first) < 0x80) return '0' <= first && first <= '9';
  return is_numeric(first_character(character.of(text)));
}

// Where the last part of the digits step begins; a text that continues may lengthen this part.
std::size_t begin_of_last_digits_part(std::string_view text, Behavior behavior) {
  std::size_t end = text.size();
  bool is_digits = false;
  for (std::size_t at = text.size(); at > 0;) {
    --at;
    if ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) continue;
    const bool is_digit = is_digit_at(text, character_at(text, at));
    if (end < text.size() && is_digit != is_digits) return end;
    if (is_digit && behavior == Behavior::isolated) return at;
    is_digits = is_digit;
    end = at;
  }
  return 0;
}

// Joins matches with their neighbours. Source: tokenizers 0.23, normalizer.rs, split.
std::vector<ByteRange> merged_parts(Behavior behavior, std::vector<WordSplitter::Part> parts) {
  const bool is_backward = behavior == Behavior::merged_with_next;
  if (is_backward) std::ranges::reverse(parts);
  std::vector<ByteRange> merged;
  bool follows_match = false;
  for (const auto& [range, is_match] : parts) {
    const bool joins =
        behavior == Behavior::contiguous ? is_match == follows_match : is_match && !follows_match;
    follows_match = is_match;
    if (!joins || merged.empty()) {
      merged.push_back(range);
    } else if (is_backward) {
      merged.back().begin = range.begin;
    } else {
      merged.back().end = range.end;
    }
  }
  if (is_backward) std::ranges::reverse(merged);
  return merged;
}

}  // namespace

PreTokenizer::PreTokenizer(const TokenizerJson& json, const std::string& name)
    : name_(name),
      steps_before_bytes_(json.steps_before_bytes),
      adds_prefix_space_(json.adds_prefix_space) {
  for (const SplitStep& split : json.steps) {
    Step step{.split = split, .pattern = nullptr};
    std::string error;
    if (split.kind == Kind::pattern) step.pattern = unicode_library().compile(split.pattern, error);
    if (split.kind == Kind::pattern && step.pattern == nullptr) {
      base::fail(base::ErrorKind::data, "tokenizer '{}': a pattern of pre_tokenizer is invalid: {}",
                 name, error);
    }
    steps_.push_back(std::move(step));
  }
}

WordSplitter::WordSplitter(const PreTokenizer& rules) : rules_(rules) {
  for (const auto& step : rules.steps_) {
    scanners_.push_back(step.pattern == nullptr ? nullptr : step.pattern->make_scanner());
  }
}

void WordSplitter::split(std::string_view text, bool begins_text, const OnWord& on_word) {
  // A text cut before the ByteLevel pre-tokenizer's own pattern continues a piece. One cut by an
  // earlier step begins a piece.
  if (!text.empty()) run(0, text, begins_text || rules_.steps_before_bytes_ > 0, on_word);
}

void WordSplitter::run(std::size_t step, std::string_view text, bool begins_text,
                       const OnWord& on_word) {
  if (step == rules_.steps_before_bytes_ && rules_.adds_prefix_space_ && begins_text &&
      !text.starts_with(' ')) {
    prefixed_.assign(1, ' ').append(text);
    text = prefixed_;
  }
  if (step == rules_.steps_.size()) return on_word(text);
  each_part(step, text, [&](const Part& part) {
    if (!part.range.is_empty()) run(step + 1, part.range.of(text), begins_text, on_word);
  });
}

// Calls on_part for the matches of a step and for what lies before each. Returns where the last
// match that does not depend on what follows the text ends.
std::size_t WordSplitter::each_match(std::size_t step, std::string_view text, bool may_continue,
                                     const OnPart& on_part) {
  using Outcome = PatternScanner::Outcome;
  std::size_t end = 0;   // of the last match
  std::size_t from = 0;  // where the next search begins
  bool has_match = false;
  while (from <= text.size()) {
    ByteRange match;
    const Outcome outcome = scanners_[step]->find(text, from, may_continue, match);
    if (outcome == Outcome::failed) {
      base::fail(
          base::ErrorKind::data,
          "tokenizer '{}': a pattern of pre_tokenizer needs too many steps or too much memory "
          "for the text \"{}\"; simplify the pattern",
          rules_.name_, base::printable(text.substr(from), 40));
    }
    if (outcome != Outcome::match) break;
    if (match.is_empty() && has_match && match.end == end) {  // as the crate onig
      from = from < text.size() ? character_at(text, from).end : from + 1;
      continue;
    }
    if (match.begin > end) on_part({.range = {.begin = end, .end = match.begin}});
    on_part({.range = match, .is_match = true});
    end = from = match.end;
    has_match = true;
  }
  return end;
}

void WordSplitter::each_part(std::size_t step, std::string_view text, const OnPart& on_part) {
  const SplitStep& split = rules_.steps_[step].split;
  std::vector<Part> parts;
  const bool streams = split.behavior == Behavior::isolated || split.behavior == Behavior::removed;
  const OnPart handle = [&](const Part& part) {
    const Part found{.range = part.range, .is_match = part.is_match != split.is_inverted};
    if (!streams) {
      parts.push_back(found);
    } else if (split.behavior == Behavior::isolated || !found.is_match) {
      on_part(found);
    }
  };
  std::size_t end = 0;
  if (split.kind == Kind::digits) {
    for (ByteRange character; character.end < text.size();) {
      character = character_at(text, character.end);
      if (!is_digit_at(text, character)) continue;
      if (character.begin > end) handle({.range = {.begin = end, .end = character.begin}});
      handle({.range = character, .is_match = true});
      end = character.end;
    }
  } else {
    end = each_match(step, text, /*may_continue=*/false, handle);
  }
  if (end < text.size()) handle({.range = {.begin = end, .end = text.size()}});
  if (streams) return;
  for (const ByteRange& range : merged_parts(split.behavior, std::move(parts))) {
    on_part({.range = range});
  }
}

// True if cutting at the parts of a step keeps the parts.
bool WordSplitter::is_cuttable(std::size_t step) const {
  if (step == rules_.steps_.size()) return false;
  const SplitStep& split = rules_.steps_[step].split;
  return split.kind == Kind::pattern &&
         (split.behavior == Behavior::isolated || split.behavior == Behavior::removed);
}

// Where the parts of a step begin and end that do not depend on what follows the text, ascending.
std::vector<std::size_t> WordSplitter::boundaries(std::size_t step, std::string_view text,
                                                  bool may_continue) {
  std::vector<std::size_t> found;
  each_match(step, text, may_continue, [&](const Part& part) {
    for (const std::size_t at : {part.range.begin, part.range.end}) {
      if (at > 0 && (found.empty() || at > found.back())) found.push_back(at);
    }
  });
  return found;
}

// True if a text that ends at `at` has the boundaries `found` before it: a pattern may look ahead.
bool WordSplitter::ends_parts_at(std::size_t step, std::string_view text, std::size_t at,
                                 const std::vector<std::size_t>& found) {
  std::vector<std::size_t> ended = boundaries(step, text.substr(0, at), /*may_continue=*/false);
  if (ended.empty() || ended.back() < at) ended.push_back(at);
  return ended.size() <= found.size() && std::equal(ended.begin(), ended.end(), found.begin());
}

// The last cut between the parts of a step, as last_cut().
std::size_t WordSplitter::last_cut_of(std::size_t step, std::string_view text,
                                      const Allows& allows) {
  constexpr std::size_t kWindow = std::size_t{4} << 10;  // bytes in which a cut is likely
  constexpr std::size_t kGrowth = 16;
  for (std::size_t window = kWindow;; window *= kGrowth) {
    const std::size_t base = text.size() - std::min(text.size(), window);
    // Boundaries that depend on nothing after the first bytes keep their place if the text ends
    // anywhere after these.
    const auto decided = boundaries(step, text.substr(0, whole_characters(text.substr(0, base))),
                                    /*may_continue=*/true);
    const std::size_t begin = decided.empty() ? 0 : decided.back();
    const std::string_view rest = text.substr(begin);
    const auto found = boundaries(step, rest, /*may_continue=*/true);
    int tries = 16;  // each reads the window
    for (auto at = found.rbegin(); at != found.rend() && begin + *at >= base && tries > 0; ++at) {
      if (!allows(begin + *at)) continue;
      if (ends_parts_at(step, rest, *at, found)) return begin + *at;
      --tries;
    }
    if (base == 0) return 0;
  }
}

std::size_t WordSplitter::last_cut(std::string_view text, const Allows& allows) {
  if (text.empty()) return 0;
  std::size_t begin = 0;  // of the last part of a digits step, which decides by characters
  std::size_t step = 0;
  bool may_be_within = true;
  if (!rules_.steps_.empty() && rules_.steps_[0].split.kind == Kind::digits) {
    begin = begin_of_last_digits_part(text, rules_.steps_[0].split.behavior);
    const bool adds_spaces = rules_.adds_prefix_space_ && rules_.steps_before_bytes_ > 0;
    may_be_within = !is_digit_at(text, character_at(text, begin)) && !adds_spaces;
    step = 1;
  }
  if (may_be_within && is_cuttable(step)) {
    const std::size_t at = last_cut_of(step, text.substr(begin),
                                       [&](std::size_t within) { return allows(begin + within); });
    if (at > 0) return begin + at;
  }
  return begin > 0 && allows(begin) ? begin : 0;
}

}  // namespace dtrain::data
