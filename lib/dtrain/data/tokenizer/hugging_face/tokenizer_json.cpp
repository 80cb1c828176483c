#include "dtrain/data/tokenizer/hugging_face/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "dtrain/base/text/text.h"
#include "dtrain/data/tokenizer/hugging_face/json_tree.h"
#include "dtrain/data/tokenizer/hugging_face/pattern_syntax.h"

namespace dtrain::data {
namespace {

// The ByteLevel pre-tokenizer's pattern.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::size_t kLongestAddedToken = 1024;  // bytes
constexpr std::size_t kLongestPattern = 1 << 14;  // bytes

std::string shown(std::string_view token) {
  constexpr std::size_t kLongest = 80;  // bytes
  return base::printable(token, kLongest);
}

[[noreturn]] void refuse_type(const JsonField& field, std::string_view supported) {
  field.refuse(fmt::format("has the type {}, which is not supported; supported: {}",
                           shown(field.type()), supported));
}

void read_vocab(const JsonField& vocab, BytePairModel& model) {
  vocab.require_object();
  std::unordered_map<std::uint32_t, std::string_view> tokens;
  for (const auto& [token, number] : vocab.value().items()) {
    const std::uint32_t id = vocab[token].token_number();
    const auto [other, is_new] = tokens.emplace(id, token);
    if (!is_new) {
      vocab.refuse(fmt::format("gives \"{}\" and \"{}\" the number {}", shown(other->second),
                               shown(token), id));
    }
    model.vocab.emplace_back(token, id);
  }
  if (model.vocab.empty()) vocab.refuse("has no tokens");
}

// A merge is a pair of tokens or, in older files, two tokens with a space between them.
std::pair<std::string, std::string> merge_of(const JsonField& field) {
  if (!field.value().is_string()) {
    const auto pair = field.elements();
    if (pair.size() != 2) field.refuse(fmt::format("has {} tokens instead of 2", pair.size()));
    return {pair[0].text(), pair[1].text()};
  }
  const std::string& text = field.text();
  const auto space = text.find(' ');
  if (space == text.npos || text.find(' ', space + 1) != text.npos) {
    field.refuse(fmt::format("is not two tokens with a space between them: \"{}\"", shown(text)));
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

void read_merges(const JsonField& merges, BytePairModel& model) {
  const std::unordered_map<std::string_view, std::uint32_t> vocab(model.vocab.begin(),
                                                                  model.vocab.end());
  const auto number_of = [&](const JsonField& field, const std::string& token) {
    const auto found = vocab.find(token);
    if (found != vocab.end()) return found->second;
    field.refuse(fmt::format("needs the token \"{}\", which model.vocab lacks", shown(token)));
  };
  std::unordered_set<std::uint64_t> seen;
  for (const JsonField& field : merges.elements()) {
    if (field.value().is_string() && field.text().starts_with("#version")) continue;
    auto merge = merge_of(field);
    const std::uint64_t left = number_of(field, merge.first);
    const std::uint64_t right = number_of(field, merge.second);
    number_of(field, merge.first + merge.second);
    if (!seen.insert(left << 32 | right).second) {
      field.refuse(fmt::format("repeats an earlier merge, \"{} {}\"", shown(merge.first),
                               shown(merge.second)));
    }
    model.merges.push_back(std::move(merge));
  }
}

BytePairModel read_model(const JsonField& field) {
  // Older files name no type.
  if (field.has("type") && field.type() != "BPE") refuse_type(field, "BPE");
  field.allow_only({"type", "dropout", "unk_token", "continuing_subword_prefix",
                    "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges", "vocab",
                    "merges"});
  if (field.has("dropout") && field["dropout"].value() != 0) {
    field["dropout"].refuse("is not 0: tokens would be random");
  }
  for (const char* const name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (field.has(name) && !field[name].text().empty()) field[name].refuse("is not supported");
  }
  if (field.boolean_or("byte_fallback", false)) field["byte_fallback"].refuse("is not supported");
  BytePairModel model{.vocab = {},
                      .merges = {},
                      .unknown = field.has("unk_token") ? field["unk_token"].text() : "",
                      .fuses_unknown = field.boolean_or("fuse_unk", false),
                      .ignores_merges = field.boolean_or("ignore_merges", false)};
  read_vocab(field["vocab"], model);
  read_merges(field["merges"], model);
  const auto is_unknown = [&](const auto& entry) { return entry.first == model.unknown; };
  if (!model.unknown.empty() && std::ranges::none_of(model.vocab, is_unknown)) {
    field["unk_token"].refuse(fmt::format("\"{}\" is not in model.vocab", shown(model.unknown)));
  }
  return model;
}

// The package numbers added tokens itself, and uses the numbers in the file only to warn. In a
// vocabulary with gaps, a new token may get the number of an earlier one, which is then not found.
std::vector<AddedToken> read_added_tokens(const JsonField& field, const BytePairModel& model) {
  std::unordered_map<std::string_view, std::uint32_t> vocab(model.vocab.begin(), model.vocab.end());
  std::vector<AddedToken> tokens;
  std::set<std::string> seen;
  std::unordered_map<std::uint32_t, std::string> content_of_id;
  auto next = static_cast<std::uint32_t>(model.vocab.size());
  for (const JsonField& each : field.elements()) {
    each.allow_only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token{.content = each["content"].text(),
                     .id = each["id"].token_number(),
                     .is_single_word = each["single_word"].boolean(),
                     .strips_left = each["lstrip"].boolean(),
                     .strips_right = each["rstrip"].boolean(),
                     .is_normalized = each["normalized"].boolean()};
    static_cast<void>(each["special"].boolean());  // decoding keeps special tokens
    if (token.content.empty() || token.content.size() > kLongestAddedToken) {
      each.refuse(
          fmt::format("has {} bytes instead of 1 to {}", token.content.size(), kLongestAddedToken));
    }
    if (!seen.insert(token.content).second) {
      each.refuse(fmt::format("repeats the token \"{}\"", shown(token.content)));
    }
    const auto known = vocab.find(token.content);
    const std::uint32_t id = known == vocab.end() ? next++ : known->second;
    if (id != token.id) {
      each.refuse(fmt::format("\"{}\" has the id {}, but {}", shown(token.content), token.id,
                              known == vocab.end() ? fmt::format("tokenizers 0.23 gives it {}", id)
                                                   : fmt::format("model.vocab gives it {}", id)));
    }
    const auto [other, is_new] = content_of_id.emplace(id, token.content);
    if (!is_new) {
      each.refuse(fmt::format("\"{}\" has the id {} of \"{}\", which would not be found",
                              shown(token.content), id, shown(other->second)));
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

bool uses_nfc(const JsonField& field) {
  if (field.is_null()) return false;
  const std::string& type = field.type();
  if (type == "Sequence") {
    field.allow_only({"type", "normalizers"});
    const auto all = field["normalizers"].elements();
    // All are read, so that each is checked.
    return std::ranges::count_if(all, uses_nfc) > 0;
  }
  if (type != "NFC") refuse_type(field, "NFC, Sequence");
  field.allow_only({"type"});
  return true;
}

std::string converted_pattern(const JsonField& field) {
  const bool is_regex = field.has("Regex");
  field.allow_only({is_regex ? "Regex" : "String"});
  const JsonField pattern = field[is_regex ? "Regex" : "String"];
  const std::string& text = pattern.text();
  if (text.empty() || text.size() > kLongestPattern) {
    pattern.refuse(fmt::format("has {} bytes instead of 1 to {}", text.size(), kLongestPattern));
  }
  if (!is_regex) return to_pcre2_literal(text);
  try {
    return to_pcre2(text);
  } catch (const UnsupportedPattern& error) {
    pattern.refuse(fmt::format("has {}", error.what()));
  }
}

SplitStep::Behavior behavior_of(const JsonField& field) {
  using enum SplitStep::Behavior;
  constexpr std::pair<std::string_view, SplitStep::Behavior> kBehaviors[] = {
      {"Removed", removed},
      {"Isolated", isolated},
      {"MergedWithPrevious", merged_with_previous},
      {"MergedWithNext", merged_with_next},
      {"Contiguous", contiguous}};
  for (const auto& [name, behavior] : kBehaviors) {
    if (field.text() == name) return behavior;
  }
  field.refuse(fmt::format("\"{}\" is not supported", shown(field.text())));
}

// The parts of this type have the same fields, whatever they are for.
void allow_byte_level_fields(const JsonField& field) {
  field.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
}

/// Collects the steps of nested pre-tokenizers.
class PreTokenizerReader {
 public:
  explicit PreTokenizerReader(TokenizerJson& json) : json_(json) {}

  void read(const JsonField& field) {
    const std::string& type = field.type();
    // A step after ByteLevel would see the alphabet's letters instead of the text.
    if (has_bytes_ && type != "Sequence") {
      field.refuse(
          fmt::format("has the type {} after ByteLevel, which must be the last", shown(type)));
    }
    if (type == "Sequence") {
      field.allow_only({"type", "pretokenizers"});
      for (const JsonField& each : field["pretokenizers"].elements()) read(each);
    } else if (type == "ByteLevel") {
      read_byte_level(field);
    } else if (type == "Split") {
      field.allow_only({"type", "pattern", "behavior", "invert"});
      json_.steps.push_back({.kind = SplitStep::Kind::pattern,
                             .pattern = converted_pattern(field["pattern"]),
                             .behavior = behavior_of(field["behavior"]),
                             .is_inverted = field["invert"].boolean()});
    } else if (type == "Digits") {
      field.allow_only({"type", "individual_digits"});
      json_.steps.push_back({.kind = SplitStep::Kind::digits,
                             .behavior = field["individual_digits"].boolean()
                                             ? SplitStep::Behavior::isolated
                                             : SplitStep::Behavior::contiguous});
    } else {
      refuse_type(field, "ByteLevel, Split, Digits, Sequence");
    }
    constexpr std::size_t kMostSteps = 64;
    if (json_.steps.size() > kMostSteps) field.refuse(fmt::format("is step {}", kMostSteps + 1));
  }

  [[nodiscard]] bool has_bytes() const { return has_bytes_; }

 private:
  void read_byte_level(const JsonField& field) {
    allow_byte_level_fields(field);
    has_bytes_ = true;
    json_.adds_prefix_space = field["add_prefix_space"].boolean();
    json_.steps_before_bytes = json_.steps.size();
    if (field.boolean_or("use_regex", true)) {
      json_.steps.push_back({.pattern = to_pcre2(kGpt2Pattern)});
    }
  }

  TokenizerJson& json_;
  bool has_bytes_ = false;
};

// Post-processors add tokens only where the package is called with add_special_tokens.
void check_post_processor(const JsonField& field) {
  if (field.is_null()) return;
  const std::string& type = field.type();
  if (type == "Sequence") {
    field.allow_only({"type", "processors"});
    std::ranges::for_each(field["processors"].elements(), check_post_processor);
  } else if (type == "ByteLevel") {
    allow_byte_level_fields(field);
  } else if (type == "TemplateProcessing") {
    field.allow_only({"type", "single", "pair", "special_tokens"});
  } else if (type == "RobertaProcessing") {
    field.allow_only({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
  } else if (type == "BertProcessing") {
    field.allow_only({"type", "sep", "cls"});
  } else {
    refuse_type(field,
                "ByteLevel, TemplateProcessing, RobertaProcessing, BertProcessing, Sequence");
  }
}

}  // namespace

TokenizerJson parse_tokenizer_json(std::string_view content, const std::string& name) {
  const nlohmann::json tree = parse_tree(content, name);
  const JsonField root(tree, "", name);
  root.allow_only({"version", "truncation", "padding", "added_tokens", "normalizer",
                   "pre_tokenizer", "post_processor", "decoder", "model"});
  if (root.has("version") && root["version"].text() != "1.0") {
    root["version"].refuse(fmt::format("is {} instead of 1.0", shown(root["version"].text())));
  }
  for (const char* const each : {"truncation", "padding"}) {
    if (root.has(each)) root[each].refuse("would change the tokens of documents; set it to null");
  }
  TokenizerJson json;
  json.model = read_model(root["model"]);
  if (root.has("added_tokens")) {
    json.added_tokens = read_added_tokens(root["added_tokens"], json.model);
  }
  json.uses_nfc = root.has("normalizer") && uses_nfc(root["normalizer"]);
  PreTokenizerReader steps(json);
  if (root.has("pre_tokenizer")) steps.read(root["pre_tokenizer"]);
  if (!steps.has_bytes()) {
    root.refuse("has no ByteLevel pre-tokenizer: only byte-level tokenizers are supported");
  }
  if (root.has("post_processor")) check_post_processor(root["post_processor"]);
  if (!root.has("decoder")) root.refuse("has no ByteLevel decoder");
  if (root["decoder"].type() != "ByteLevel") refuse_type(root["decoder"], "ByteLevel");
  allow_byte_level_fields(root["decoder"]);
  return json;
}

}  // namespace dtrain::data
