#include <deque>

#include "dtrain/data/tokenizer/sentencepiece_library.h"
#include "dtrain/data/tokenizer/tokenizer.h"
#include "dtrain/data/tokenizer/utf8.h"
#include "dtrain/data/tokens/token_file.h"
#include "dtrain/data/tokens/token_writer.h"
#include "support/messages.h"
#include "support/temp_folder.h"

namespace dtrain::data::sentencepiece_test {
namespace {

using base::ErrorKind;
using Catch::Matchers::Contains;
using dtrain::testing::message_of;
using dtrain::testing::Names;
using Tokens = std::vector<std::uint32_t>;

const std::string& english() {
  static const std::string text = [] {
    std::ifstream file(DTRAIN_SOURCE_DIR "/tests/golden/text.bin", std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }();
  return text;
}

/// Difficult text: runs of spaces and newlines, other scripts, combining and unknown characters.
const std::string kOdd =
    "  Two  spaces, a\ttab;\n\n\nthree lines .\n \n = Title = \n\xC3\xA4\xC3\xB6 \xEF\xAC\x81ne "
    "na\xC3\xAFve e\xCC\x81t\xC3\xA9 \xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xE3\x80\x82 "
    "\xF0\x9F\x98\x80"
    "\xF0\x9F\x98\x80 x\xE2\x96\x81y @ @ ~ ^ \x01 end \n"
    "\xD0\x9E\xD0\xBD  \xD0\xB8 \xD0\xBE\xD0\xBD\xD0\xB0.\n\xD0\x98 \xE2\x80\x9Csaid\xE2\x80\x9D "
    "\xE6\x97\xA5\xE3\x80\x82\n\xE6\x9C\xAC\xE3\x80\x80\xE3\x81\x8B\xE3\x82\x99 \xCC\x81 \xC2\xA0 "
    "\xEF\xBC\xA1\n";

/// A model trained by SentencePiece on the text's lines.
std::string model_of(SentencePieceLibrary::TrainerFlags words,
                     const std::string& text = english()) {
  std::deque<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  words.emplace("vocab_size", "600");
  words.emplace("minloglevel", "2");
  std::string error;
  std::string model = sentencepiece_library().train(
      words,
      [&](std::string& line) {
        if (lines.empty()) return false;
        line = lines.front();
        lines.pop_front();
        return true;
      },
      error);
  INFO(error);
  REQUIRE_FALSE(model.empty());
  return model;
}

std::string our_model(const std::string& text = english()) {
  return model_of({{"model_type", "bpe"},
                   {"byte_fallback", "true"},
                   {"normalization_rule_name", "identity"},
                   {"remove_extra_whitespaces", "false"},
                   {"add_dummy_prefix", "false"}},
                  text);
}

std::string english_without_spaces() {
  std::string text = english();
  std::erase(text, ' ');
  return text;
}

/// SentencePiece's own encoding of the whole text.
Tokens oracle(const std::string& model, const std::string& text) {
  std::string error;
  std::vector<int> ids;
  REQUIRE(sentencepiece_library().load(model, error)->encode(text, ids, error));
  return {ids.begin(), ids.end()};
}

/// The same encoding in blocks of about this size, cut by the tokenizer.
Tokens in_blocks(const Tokenizer& tokenizer, std::string_view text, std::size_t size) {
  const auto encoder = tokenizer.make_encoder();
  Tokens tokens;
  bool begins = true;
  while (!text.empty()) {
    std::size_t cut = text.size();
    for (std::size_t looked = size; looked < text.size() && cut == text.size(); looked *= 2) {
      const std::size_t found = tokenizer.cut(text.substr(0, looked));
      if (found > 0) cut = found;
    }
    encoder->encode(text.substr(0, cut), begins, tokens);
    text.remove_prefix(cut);
    begins = false;
  }
  return tokens;
}

TEST_CASE("Tokens equal SentencePiece's for the whole text, for any model and block size") {
  const std::vector<SentencePieceLibrary::TrainerFlags> models = {
      {{"model_type", "unigram"}},
      {{"model_type", "bpe"}},
      {{"model_type", "bpe"}, {"byte_fallback", "true"}, {"normalization_rule_name", "identity"}},
      {{"model_type", "unigram"}, {"add_dummy_prefix", "false"}},
      {{"model_type", "unigram"}, {"remove_extra_whitespaces", "false"}},
      {{"model_type", "unigram"}, {"split_by_whitespace", "false"}},
      {{"model_type", "bpe"},
       {"split_by_whitespace", "false"},
       {"byte_fallback", "true"},
       {"normalization_rule_name", "identity"}},
      {{"model_type", "bpe"}, {"treat_whitespace_as_suffix", "true"}},
      {{"model_type", "bpe"}, {"user_defined_symbols", "<sep>,ed th,\n"}},
      {{"model_type", "char"}}};
  const std::string text = kOdd + english().substr(0, 20'000) + kOdd;
  std::vector<std::string> files{our_model(), our_model(english_without_spaces())};
  for (const auto& words : models) files.push_back(model_of(words));
  for (std::size_t i = 0; i < files.size(); ++i) {
    INFO("model " << i);
    const auto tokenizer = open_tokenizer(files[i], "test.model");
    const Tokens expected = oracle(files[i], text);
    for (const std::size_t size : {std::size_t{50}, std::size_t{3000}, text.size()}) {
      INFO("blocks of " << size);
      CHECK(in_blocks(*tokenizer, text, size) == expected);
    }
  }
}

TEST_CASE("A model that tests itself has SentencePiece's tokens, too") {
  const std::string text = kOdd + english().substr(0, 5000);
  for (const std::string type : {"bpe", "unigram"}) {
    const std::string file = model_of({{"model_type", type}, {"self_test_sample_size", "5"}});
    std::string error;
    const std::string without_prefix("\x1a\x02\x18\x00", 4);  // as its samples are not encoded
    REQUIRE(sentencepiece_library().load(file + without_prefix, error) == nullptr);
    CHECK(in_blocks(*open_tokenizer(file, "test.model"), text, 50) == oracle(file, text));
  }
}

/// Repeats `text` up to the last complete character in `size` bytes.
std::string repeated(const std::string& text, std::size_t size) {
  std::string all;
  while (all.size() < size) all += text;
  return all.substr(0, whole_characters(std::string_view(all).substr(0, size)));
}

TEST_CASE("Documents of up to 64 KiB have SentencePiece's tokens even if float32 sums round") {
  const std::vector<std::string> documents = {
      repeated(english() + kOdd, kMaxEncodeBytes), repeated(english(), kMaxEncodeBytes - 1),
      repeated(english_without_spaces(), kMaxEncodeBytes),
      repeated("\xE6\x97\xA5\xE6\x9C\xAC\xE3\x80\x82", kMaxEncodeBytes)};
  for (const std::string_view type : {"unigram", "bpe"}) {
    const std::string file = model_of({{"model_type", std::string(type)},
                                       {"vocab_size", "1600"},
                                       {"byte_fallback", "true"},
                                       {"user_defined_symbols", "<sep>,\n,  "},
                                       {"normalization_rule_name", "identity"}});
    const auto tokenizer = open_tokenizer(file, "test.model");
    for (std::size_t i = 0; i < documents.size(); ++i) {
      INFO(type << " " << i);
      Tokens tokens;
      tokenizer->make_encoder()->encode(documents[i], true, tokens);
      CHECK(tokens == oracle(file, documents[i]));
    }
  }
}

TEST_CASE("A model with custom normalization rules has no cut positions") {
  const dtrain::testing::TempFolder folder;
  const std::string rules = folder.write("rules.tsv", "71 20 71\t58\n");  // "q q" becomes "X"
  const std::string file = model_of({{"model_type", "bpe"}, {"normalization_rule_tsv", rules}});
  const auto tokenizer = open_tokenizer(file, "test.model");
  const std::string text = "one q q two q q";
  CHECK(tokenizer->cut(text) == 0);
  Tokens tokens;
  tokenizer->make_encoder()->encode(text, true, tokens);
  CHECK(tokens == oracle(file, text));
}

TEST_CASE("A model of ours has cut positions at words and lines") {
  const auto tokenizer = open_tokenizer(our_model(), "test.model");
  CHECK(tokenizer->cut("one two") == 3);
  CHECK(tokenizer->cut("one\ntwo") == 4);
  CHECK(tokenizer->cut("one  two") == 3);
  CHECK(tokenizer->cut("one \xC3\xA4") == 3);
  CHECK(tokenizer->cut("\xE6\x97\xA5\n\xE6\x9C\xAC") == 4);
  CHECK(tokenizer->cut("one \xCC\x81") == 0);
  const auto of_lines = open_tokenizer(our_model(english_without_spaces()), "test.model");
  CHECK(of_lines->cut("one two") == 0);
  CHECK(of_lines->cut("one\ntwo") == 4);
  CHECK(tokenizer->cut("") == 0);
}

TEST_CASE("A model of ours is lossless") {
  const auto tokenizer = open_tokenizer(our_model(), "test.model");
  std::string without_cuts;
  while (without_cuts.size() < 3 * kMaxEncodeBytes) without_cuts += "\xE6\x97\xA5\xE6\x9C\xAC-";
  CHECK(tokenizer->cut(without_cuts) == without_cuts.size() - 1);
  for (const std::string& text : {english(), kOdd, without_cuts}) {
    std::string found;
    for (const std::uint32_t token : in_blocks(*tokenizer, text, 4096)) {
      found += tokenizer->text_of(token);
    }
    // SentencePiece's symbol for a space decodes to a space.
    std::string expected = text;
    if (const auto sign = expected.find(kSpaceMark); sign != expected.npos) {
      expected = expected.substr(0, sign) + " " + expected.substr(sign + kSpaceMark.size());
    }
    CHECK(found == expected);
  }
}

TEST_CASE("A file with a smaller vocabulary than its tokenizer cannot open it") {
  const dtrain::testing::TempFolder folder;
  const std::string model = our_model();
  TokenWriter writer(folder.path("t"),
                     {.tokenizer = TokenizerKind::sentencepiece, .vocab = 256, .model = model});
  writer.add(std::vector<std::byte>(9));
  writer.finish();
  writer.commit();
  const auto file = TokenFile::open(folder.path("t"), 256);
  CHECK_THAT(message_of(ErrorKind::data, [&] { std::ignore = tokenizer_of(file); }),
             Contains(folder.path("t")) && Contains("256") && Contains("600"));
}

TEST_CASE("A file that is not a model is rejected by name") {
  const std::string model = our_model();
  for (const std::string& content :
       {std::string("text"), std::string(), model.substr(0, 900), model + "\x22\x7f",
        model + "\x22" + std::string(9, '\xff') + "\x01", model + std::string(20, '\xff')}) {
    CHECK_THAT(
        message_of(ErrorKind::data, [&] { std::ignore = open_tokenizer(content, "some.model"); }),
        Names("some.model", "SentencePiece"));
  }
}

}  // namespace
}  // namespace dtrain::data::sentencepiece_test
