#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "dtrain/data/tokenizer/hugging_face/document_end.h"
#include "dtrain/data/tokenizer/hugging_face/pattern_syntax.h"
#include "dtrain/data/tokenizer/stored_tokenizer.h"
#include "dtrain/data/tokenizer/tokenizer.h"
#include "dtrain/data/tokenizer/utf8.h"
#include "support/messages.h"
#include "support/temp_folder.h"

namespace dtrain::data::hugging_face_test {
namespace {

using base::ErrorKind;
using dtrain::testing::message_of;
using dtrain::testing::Names;
using Json = nlohmann::ordered_json;
using Tokens = std::vector<std::uint32_t>;

/// Results of the package tokenizers: tests/golden/tokenizers/generate.py.
const Json& golden() {
  static const Json json = [] {
    std::ifstream file(DTRAIN_SOURCE_DIR "/tests/golden/tokenizers/variants.json");
    return Json::parse(file);
  }();
  return json;
}

/// A variant's tokenizer.json.
Json tokenizer_json(const Json& variant) {
  Json json = golden()["base"];
  json["model"].update(variant.value("model", Json::object()));
  for (const std::string letter : variant.value("without", Json::array())) {
    json["model"]["vocab"].erase(letter);
    Json merges = Json::array();
    for (const Json& pair : json["model"]["merges"]) {
      const bool has_letter = pair.dump(-1, ' ', false).find(letter) != std::string::npos;
      if (!has_letter) merges.push_back(pair);
    }
    json["model"]["merges"] = merges;
  }
  for (const char* const name : {"pre_tokenizer", "normalizer"}) {
    if (variant.contains(name)) json[name] = variant[name];
  }
  for (const Json& token : variant.value("added_tokens", Json::array())) {
    json["added_tokens"].push_back(token);
  }
  return json;
}

Json gpt2_json() { return tokenizer_json(golden()["variants"][0]); }

/// A tokenizer that splits texts by a pattern.
Json split_json(const std::string& pattern) {
  Json json = gpt2_json();
  Json bytes = json["pre_tokenizer"];
  bytes["use_regex"] = false;
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", Json::array({split, bytes})}};
  return json;
}

std::shared_ptr<const Tokenizer> opened(const Json& json) {
  return open_tokenizer(json.dump(), "t.json");
}

Tokens tokens_of(const Tokenizer& tokenizer, std::string_view text) {
  Tokens tokens;
  tokenizer.make_encoder()->encode(text, true, tokens);
  return tokens;
}

std::string decoded(const Tokenizer& tokenizer, const Tokens& tokens) {
  Utf8Repair repair;
  std::string text;
  for (const std::uint32_t token : tokens) text += repair.add(tokenizer.text_of(token));
  return text + repair.finish();
}

/// The same encoding in blocks of about this size, cut by the tokenizer. Counts the cuts.
Tokens in_blocks(const Tokenizer& tokenizer, std::string_view text, std::size_t size, int& cuts) {
  const auto encoder = tokenizer.make_encoder();
  Tokens tokens;
  bool begins = true;
  while (!text.empty()) {
    std::size_t cut = 0;
    for (std::size_t looked = size; looked < text.size() && cut == 0; looked += size) {
      cut = tokenizer.cut(text.substr(0, looked));
      cuts += cut > 0 ? 1 : 0;
    }
    if (cut == 0) cut = text.size();
    encoder->encode(text.substr(0, cut), begins, tokens);
    text.remove_prefix(cut);
    begins = false;
  }
  return tokens;
}

TEST_CASE("Tokens and decoded texts equal those of the package tokenizers") {
  for (const Json& variant : golden()["variants"]) {
    INFO(variant["name"]);
    const auto tokenizer = opened(tokenizer_json(variant));
    for (std::size_t i = 0; i < golden()["texts"].size(); ++i) {
      INFO(golden()["texts"][i]);
      const Tokens tokens = tokens_of(*tokenizer, golden()["texts"][i].get<std::string>());
      CHECK(tokens == variant["ids"][i].get<Tokens>());
      CHECK(decoded(*tokenizer, tokens) == variant["decoded"][i].get<std::string>());
    }
  }
}

TEST_CASE("A text cut into blocks has the tokens of the whole") {
  std::string text;
  for (int i = 0; i < 3; ++i) {
    for (const std::string each : golden()["texts"]) text += each;
  }
  int cuts = 0;
  for (const Json& variant : golden()["variants"]) {
    INFO(variant["name"]);
    const auto tokenizer = opened(tokenizer_json(variant));
    const Tokens whole = tokens_of(*tokenizer, text);
    for (const std::size_t size : {1, 7, 60, 500}) {
      INFO("blocks of " << size);
      CHECK(in_blocks(*tokenizer, text, size, cuts) == whole);
    }
  }
  CHECK(cuts > 1000);
}

TEST_CASE("A text is cut before the first byte that is not UTF-8") {
  std::string valid;
  for (const std::string each : golden()["texts"]) valid += each;
  std::string other;  // Russian in Windows-1251
  while (other.size() < 5000) other += "\xCF\xF0\xE8\xE2\xE5\xF2, \xEC\xE8\xF0! 12 ";
  for (const Json& variant : golden()["variants"]) {
    INFO(variant["name"]);
    const auto tokenizer = opened(tokenizer_json(variant));
    CHECK(tokenizer->cut(other) == 0);
    CHECK(tokenizer->cut("\x80<single> word, " + other) == 0);
    for (const std::string& rest : {other, "\x80" + valid, std::string("\xF0\x9F\x98")}) {
      CHECK(tokenizer->cut(valid + rest) == tokenizer->cut(valid));
    }
  }
}

TEST_CASE("Long words take linear time") {
  const auto tokenizer = opened(gpt2_json());
  constexpr std::size_t kSize = 1 << 20;  // bytes; with quadratic steps the test would take hours
  for (const std::string piece : {"x", " ", "\n", "the", "-", "e\u0301"}) {
    std::string text;
    while (text.size() < kSize) text += piece;
    const Tokens tokens = tokens_of(*tokenizer, text);
    CHECK(decoded(*tokenizer, tokens) == text);
    CHECK(tokenizer->cut(text) <= text.size());
  }
}

TEST_CASE("Added tokens within white space that others strip take linear time") {
  Json json = gpt2_json();
  const std::size_t first = json["model"]["vocab"].size();
  constexpr struct {
    const char* content;
    bool strips_left;
    bool strips_right;
  } kTokens[] = {
      {"\n", false, true}, {"\r", true, false}, {"\t", true, true}, {"\f", false, false}};
  for (std::size_t i = 0; i < std::size(kTokens); ++i) {
    json["added_tokens"].push_back({{"id", first + i},
                                    {"content", kTokens[i].content},
                                    {"single_word", false},
                                    {"lstrip", kTokens[i].strips_left},
                                    {"rstrip", kTokens[i].strips_right},
                                    {"normalized", false},
                                    {"special", false}});
  }
  const auto tokenizer = opened(json);
  constexpr std::size_t kSize = 1 << 21;  // bytes; with quadratic steps the test would take hours
  for (const std::string piece : {"\n", "\r", "\t", "\n\f", "\r\f", "\t\n\r\f"}) {
    std::string text;
    Tokens expected;  // every character is a token, whatever the ones before it strip
    while (text.size() < kSize) {
      text += piece;
      for (const char c : piece) {
        const auto* const token =
            std::ranges::find(kTokens, c, [](auto& each) { return *each.content; });
        expected.push_back(static_cast<std::uint32_t>(first + (token - kTokens)));
      }
    }
    CHECK((tokens_of(*tokenizer, text) == expected));
  }
}

TEST_CASE("A prompt of which no token is left is rejected") {
  const auto refusal = [](const Tokenizer& tokenizer, std::string_view prompt) {
    return message_of(ErrorKind::data,
                      [&] { static_cast<void>(prompt_tokens(tokenizer, prompt, "prompt 7")); });
  };
  const Json without = {{"without", Json::array({"\u0101", "\u010a"})}};  // 01 and 0A
  const auto dropping = opened(tokenizer_json(without));
  CHECK_THAT(refusal(*dropping, "\x01\x01"), Names("prompt 7"));
  CHECK_THAT(refusal(*dropping, ""), Names("prompt 7"));  // stands for a newline
  CHECK(prompt_tokens(*dropping, "\x01 e", "prompt 7") == prompt_tokens(*dropping, " e", ""));

  Json removing = split_json("-");
  removing["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed";
  CHECK_THAT(refusal(*opened(removing), "--"), Names("prompt 7"));
}

TEST_CASE("Threads share a tokenizer") {
  const auto tokenizer = opened(tokenizer_json(golden()["variants"][3]));
  const std::string text = golden()["texts"].dump();
  std::vector<Tokens> found(4);
  {
    std::vector<std::jthread> threads;
    for (Tokens& tokens : found) {
      threads.emplace_back([&] { tokens = tokens_of(*tokenizer, text); });
    }
  }
  for (const Tokens& tokens : found) CHECK(tokens == found.front());
}

TEST_CASE("Merges may be strings") {
  Json json = gpt2_json();
  for (Json& merge : json["model"]["merges"]) {
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  const std::string text = "the word";
  CHECK(tokens_of(*opened(json), text) == tokens_of(*opened(gpt2_json()), text));
}

TEST_CASE("Tokens added to a vocabulary with gaps are numbered as in the package tokenizers") {
  Json json = gpt2_json();
  const std::size_t size = json["model"]["vocab"].size();
  json["model"]["vocab"]["<|end|>"] = size + 1;  // instead of 0
  json["added_tokens"][0]["id"] = size + 1;
  const auto add = [&](const std::string& content, std::size_t id) {
    Json token = json["added_tokens"][0];
    token["content"] = content;
    token["id"] = id;
    json["added_tokens"].push_back(token);
  };
  const auto refusal = [&] {
    return message_of(ErrorKind::data, [&] { static_cast<void>(opened(json)); });
  };
  add("<new>", size);
  const auto end = static_cast<std::uint32_t>(size) + 1;
  CHECK(tokens_of(*opened(json), "<|end|><new>") == Tokens{end, end - 1});
  add("<both>", size + 1);  // the package would no longer find <|end|>
  CHECK_THAT(refusal(), Names("t.json", "<both>", end, "<|end|>"));
  json["added_tokens"][1]["id"] = size + 2;  // as versions before 0.22.2 number it
  CHECK_THAT(refusal(), Names("t.json", "<new>", size + 2, size));
}

struct Refusal {
  std::string path;  // a JSON pointer to what is replaced
  std::string value;
  std::string named;
};

TEST_CASE("What is not supported is rejected by its name") {
  const std::vector<Refusal> refusals = {
      {"/model/type", R"("Unigram")", "Unigram"},
      {"/model/type", "3", "model.type"},
      {"/model/dropout", "0.1", "model.dropout"},
      {"/model/byte_fallback", "true", "model.byte_fallback"},
      {"/model/continuing_subword_prefix", R"("##")", "model.continuing_subword_prefix"},
      {"/model/end_of_word_suffix", R"("</w>")", "model.end_of_word_suffix"},
      {"/model/unk_token", R"("<none>")", "<none>"},
      {"/model/vocab", "[]", "array"},
      {"/model/vocab", "{}", "model.vocab"},
      {"/model/vocab/e", "-1", "model.vocab.e"},
      {"/model/vocab/e", "4294967296", "model.vocab.e"},
      {"/model/vocab/e", "1.5", "model.vocab.e"},
      {"/model/vocab/e", "0", "<|end|>"},
      {"/model/merges", "{}", "object"},
      {"/model/merges/0", R"(["zzz", "q"])", "zzz"},
      {"/model/merges/0", R"(["e", "q", "q"])", "model.merges[0]"},
      {"/model/merges/0", R"("eq")", "model.merges[0]"},
      {"/model/merges/1", golden()["base"]["model"]["merges"][0].dump(), "model.merges[1]"},
      {"/model/more", "1", "more"},
      {"/truncation", R"({"max_length": 3})", "truncation"},
      {"/padding", R"({"strategy": "BatchLongest"})", "padding"},
      {"/version", R"("2.0")", "2.0"},
      {"/more", "1", "more"},
      {"/normalizer", R"({"type": "NFKC"})", "NFKC"},
      {"/normalizer", R"({"type": "Sequence", "normalizers": [{"type": "Lowercase"}]})",
       "Lowercase"},
      {"/normalizer", "[]", "array"},
      {"/pre_tokenizer", R"({"type": "Metaspace"})", "Metaspace"},
      {"/pre_tokenizer", "null", "ByteLevel"},
      {"/pre_tokenizer", R"({"type": "ByteLevel"})", "pre_tokenizer.add_prefix_space"},
      {"/pre_tokenizer/add_prefix_space", "1", "pre_tokenizer.add_prefix_space"},
      {"/post_processor", R"({"type": "Strange"})", "Strange"},
      {"/post_processor", R"({"type": "ByteLevel", "more": 1})", "more"},
      {"/post_processor", R"({"type": "TemplateProcessing", "more": 1})", "more"},
      {"/post_processor", R"({"type": "RobertaProcessing", "more": 1})", "more"},
      {"/post_processor", R"({"type": "BertProcessing", "trim_offsets": true})", "trim_offsets"},
      {"/post_processor", R"({"type": "Sequence", "processors": [], "more": 1})", "more"},
      {"/post_processor",
       R"({"type": "Sequence", "processors": [{"type": "ByteLevel", "more": 1}]})", "more"},
      {"/decoder/more", "1", "more"},
      {"/decoder", R"({"type": "WordPiece"})", "WordPiece"},
      {"/decoder", "null", "ByteLevel"},
      {"/added_tokens/0/id", "7", "7"},
      {"/added_tokens/0/content", R"("")", "added_tokens[0]"},
      {"/added_tokens/0/content", '"' + std::string(2000, 'x') + '"', "2000"},
      {"/added_tokens/0/lstrip", "0", "added_tokens[0].lstrip"},
      {"/added_tokens/1", golden()["base"]["added_tokens"][0].dump(), "added_tokens[1]"}};
  for (const Refusal& refusal : refusals) {
    INFO(refusal.path << " " << refusal.value);
    Json json = gpt2_json();
    json[Json::json_pointer(refusal.path)] = Json::parse(refusal.value);
    CHECK_THAT(message_of(ErrorKind::data, [&] { static_cast<void>(opened(json)); }),
               Names("t.json", refusal.named));
  }
}

TEST_CASE("A damaged tokenizer.json ends with one line") {
  const std::string whole = gpt2_json().dump();
  const std::vector<std::string> damaged = {"{",
                                            "{}",
                                            "{\"model\": ",
                                            R"({"model": {}, "model": {}})",
                                            whole.substr(0, whole.size() / 2),
                                            whole + "x",
                                            "{\"model\": " + std::string(100'000, '['),
                                            "{\"model\": 1e999}",
                                            std::string("{\0}", 3),
                                            "{\"a\xFF\": 1}"};
  for (const std::string& content : damaged) {
    const std::string message =
        message_of(ErrorKind::data, [&] { static_cast<void>(open_tokenizer(content, "t.json")); });
    CHECK_THAT(message, Names("t.json"));
    CHECK(message.find('\n') == message.npos);
    CHECK(message.size() < 400);
  }
}

TEST_CASE("Constructs that PCRE2 reads differently are rejected") {
  for (const std::string pattern :
       {R"(\w+)",      R"(\ba)",         "^a",          "a$",      R"(\h)",     R"(\x80)",
        R"(\p{Han})",  R"(\p{Mn})",      R"((a)\1)",    "(?<=a)b", "(?<n>a)",   "(?i)a",
        "(?m:a)",      "a{2}+",          "a{2}?",       "a{,2}",   "a**",       "[a[b]]",
        "[a&&b]",      "[]a]",           "[[:alpha:]]", R"([\D])", R"([\s-z])", "(?i:ss)",
        "(?i:\u00e4)", R"((?i:\p{Lu}))", "a)",          "[a",      "\\"}) {
    INFO(pattern);
    CHECK_THROWS_AS(to_pcre2(pattern), UnsupportedPattern);
  }
  for (const std::string pattern : {"(a", "a{3,2}", "[z-a]"}) {  // by PCRE2
    INFO(pattern);
    CHECK_THAT(message_of(ErrorKind::data, [&] { static_cast<void>(opened(split_json(pattern))); }),
               Names("t.json", "pre_tokenizer"));
  }
}

TEST_CASE("A pattern with too many steps ends the encoding") {
  const auto tokenizer = opened(split_json("(?:a|aa)+(?:b|c)"));
  const std::string text(100, 'a');
  CHECK_THAT(message_of(ErrorKind::data, [&] { static_cast<void>(tokens_of(*tokenizer, text)); }),
             Names("t.json", "pre_tokenizer"));
}

TEST_CASE("Bytes that are not UTF-8 decode to U+FFFD as in Unicode's recommendation") {
  const std::string mark = "\xEF\xBF\xBD";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a\xFFz", "a" + mark + "z"},
      {"\xE2\x82", mark},
      {"\xE2\x82z", mark + "z"},
      {"\xE0\x80\x80", mark + mark + mark},
      {"\xED\xA0\x80", mark + mark + mark},
      {"\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80"},
      {"\xF0\x9F\x98\xF0\x9F\x98\x80", mark + "\xF0\x9F\x98\x80"},
      {"\xF4\x90\x80\x80", mark + mark + mark + mark},
      {"\xC3\xA9\xC3", "\xC3\xA9" + mark},
      {"\x80", mark}};
  for (const auto& [bytes, expected] : cases) {
    Utf8Repair whole;
    const std::string begin = whole.add(bytes);
    CHECK(begin + whole.finish() == expected);
    Utf8Repair pieces;
    std::string text;
    for (const char byte : bytes) text += pieces.add({&byte, 1});
    CHECK(text + pieces.finish() == expected);
  }
}

TEST_CASE("A tokenizer.json is kept unchanged, beside the token that ends documents") {
  const dtrain::testing::TempFolder folder;
  const std::string content = gpt2_json().dump(1) + "\n";
  const std::string model = with_document_end(content, "<|end|>");
  const auto tokenizer = open_tokenizer(model, "t.json");
  CHECK(tokenizer->end_of_document() == 0u);
  CHECK(tokenizer->model() == model);
  CHECK_FALSE(open_tokenizer(content, "t.json")->end_of_document());
  CHECK(identity_of(TokenizerKind::hugging_face, model) ==
        identity_of(TokenizerKind::hugging_face, content));
  CHECK(with_document_end(model, "") == content);
  CHECK_THAT(
      message_of(
          ErrorKind::data,
          [&] { static_cast<void>(open_tokenizer(with_document_end(content, "<no>"), "t.json")); }),
      Names("t.json", "<no>"));

  CHECK_FALSE(tokenizer_in(folder.path("")));
  for (const auto& [name, text] : files_of_tokenizer(model)) {
    std::ofstream(folder.path(name), std::ios::binary) << text;
    if (name == "tokenizer.json") CHECK(text == content);
  }
  CHECK(tokenizer_in(folder.path(""))->model == model);
  CHECK(read_tokenizer(folder.path(""))->model() == content);
  CHECK(read_tokenizer(folder.path(""), "<|end|>")->model() == model);

  std::ofstream(folder.path("tokenizer_config.json")) << R"({"eos_token": "<no>"})";
  const StoredTokenizer wrong = *tokenizer_in(folder.path(""));
  CHECK_THAT(message_of(ErrorKind::data,
                        [&] { static_cast<void>(open_tokenizer(wrong.model, wrong.path)); }),
             Names(wrong.path, "tokenizer_config.json", "eos_token", "<no>"));

  folder.write("tokenizer.json", "junk");
  const std::string message = message_of(
      ErrorKind::data, [&] { static_cast<void>(open_tokenizer(*tokenizer_in(folder.path("")))); });
  CHECK_THAT(message, Names(wrong.path));
  CHECK_THAT(message, !Catch::Contains("dtrain data tokenizer train"));
}

TEST_CASE("A tokenizer is found by its kind, or a SentencePiece model before a tokenizer.json") {
  const dtrain::testing::TempFolder folder;
  folder.write("run/tokenizer.model", "pieces");
  folder.write("run/tokenizer.json", "{}");
  const std::string weights = folder.write("run/final/model.safetensors", "weights");
  CHECK(tokenizer_near(weights)->model == "pieces");
  CHECK(tokenizer_near(weights, TokenizerKind::sentencepiece)->model == "pieces");
  CHECK(tokenizer_near(weights, TokenizerKind::hugging_face)->model == "{}");
}

TEST_CASE("A fingerprint tells its tokenizer's kind") {
  for (const auto kind : {TokenizerKind::unknown, TokenizerKind::bytes,
                          TokenizerKind::sentencepiece, TokenizerKind::hugging_face}) {
    CHECK(kind_of_identity(identity_of(kind, "{}")) == kind);
  }
  CHECK(kind_of_identity("other xxh3 0123456789abcdef") == TokenizerKind::unknown);
  CHECK(kind_of_identity("") == TokenizerKind::unknown);
}

}  // namespace
}  // namespace dtrain::data::hugging_face_test
