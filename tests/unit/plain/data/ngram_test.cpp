#include "dtrain/data/ngram.h"

#include <cmath>
#include <map>
#include <set>

#include "support/temp_folder.h"

namespace dtrain::data::ngram_test {
namespace {

using base::ErrorKind;
using Catch::Matchers::Contains;
using dtrain::testing::message_of;
using dtrain::testing::TempFolder;

/// Witten-Bell smoothing on strings, computed from its definition.
double oracle(const std::string& text, const std::string& context, char next) {
  std::map<char, int> followers;
  int total = 0;
  for (std::size_t i = context.size(); i < text.size(); ++i) {
    if (text.substr(i - context.size(), context.size()) != context) continue;
    ++followers[text[i]];
    ++total;
  }
  const double lower = context.empty() ? 1.0 / 256 : oracle(text, context.substr(1), next);
  const auto kinds = static_cast<double>(followers.size());
  return total == 0 ? lower : (followers[next] + kinds * lower) / (total + kinds);
}

double probability(const NgramModel& model, const std::string& context, char next) {
  std::vector<std::int64_t> bytes;
  for (const char c : context) bytes.push_back(static_cast<unsigned char>(c));
  return model.probability(bytes, static_cast<unsigned char>(next));
}

TEST_CASE("N-gram probabilities match the definition") {
  const TempFolder folder;
  const std::string text = "abracadabra, said the magician, abracadabra";
  const Split split = open_split({.train = folder.write("t", text), .seq_len = 4});
  const NgramModel model(split.train.first());
  const std::string nothing_before{'\0', 'a'};  // the beginning of the text must not count as a NUL
  for (const std::string& context :
       std::vector<std::string>{"", "a", "q", "ab", "br", "qa", "xy", "ra", nothing_before}) {
    for (const char next : {'a', 'b', 'r', ',', 'q', '\xff'}) {
      INFO(context << "|" << next);
      CHECK(probability(model, context, next) ==
            Approx(oracle(text, context, next)).epsilon(1e-13));
    }
  }
}

TEST_CASE("N-gram probabilities of all bytes sum to one") {
  const TempFolder folder;
  const Split split =
      open_split({.train = folder.write("t", "the cat sat on the mat"), .seq_len = 4});
  const NgramModel model(split.train.first());
  for (const std::string context : {"", "t", "th", "zz", "he"}) {
    double total = 0;
    for (int next = 0; next < 256; ++next) {
      total += probability(model, context, static_cast<char>(next));
    }
    CHECK(total == Approx(1).epsilon(1e-12));
  }
}

TEST_CASE("The baseline is evaluated on the validation targets with the inputs as context") {
  const TempFolder folder;
  const std::string train = "she sells sea shells by the sea shore, ";
  const std::string validation = "the shells she sells are";
  const Split split = open_split({.train = folder.write("t", train),
                                  .validation = folder.write("v", validation),
                                  .seq_len = 5});
  REQUIRE(split.validation.size() == 4);
  for (const std::int64_t num_samples : {1, 3, 4, 99}) {
    const auto used = static_cast<std::size_t>(std::min<std::int64_t>(num_samples, 4));
    double bigram = 0;
    double trigram = 0;
    for (std::size_t n = 0; n < 5 * used; ++n) {
      const std::size_t i = n / 5 * 4 / used * 5 + n % 5;  // spread over the four samples
      const std::size_t seen = std::min<std::size_t>(i % 5 + 1, 2);
      bigram -= std::log(oracle(train, validation.substr(i, 1), validation[i + 1]));
      trigram -= std::log(oracle(train, validation.substr(i + 1 - seen, seen), validation[i + 1]));
    }
    const NgramLoss loss = evaluate_ngrams(split, num_samples);
    CHECK(loss.num_targets == static_cast<std::int64_t>(5 * used));
    CHECK(loss.bigram == Approx(bigram / static_cast<double>(5 * used)).epsilon(1e-12));
    CHECK(loss.trigram == Approx(trigram / static_cast<double>(5 * used)).epsilon(1e-12));
  }
}

TEST_CASE("Counts do not depend on the read chunk size") {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 70'000; ++i)
    text.push_back(i % 3 == 0 ? 'x' : static_cast<char>('a' + i % 7));
  const Split split = open_split({.train = folder.write("t", text), .seq_len = 4});
  const NgramModel model(split.train.first());
  CHECK(probability(model, "bx", 'd') == Approx(oracle(text, "bx", 'd')).epsilon(1e-13));
  CHECK(probability(model, "", 'x') == Approx(oracle(text, "", 'x')).epsilon(1e-13));
}

TEST_CASE("A baseline without validation data or byte tokens is rejected by file name") {
  const TempFolder folder;
  const std::string text = folder.write("t", "some text");
  const Split none = open_split({.train = text, .seq_len = 4});
  CHECK_THAT(message_of(ErrorKind::data, [&] { std::ignore = evaluate_ngrams(none, 1); }),
             Contains(text) && Contains("--val-fraction"));
  const auto header = encode_token_header({.bytes_per_token = 2, .vocab = 300, .num_tokens = 3});
  const std::string wide =
      folder.write("w", std::string(reinterpret_cast<const char*>(header.data()), header.size()) +
                            std::string("\x01\x00\x02\x00\x01\x01", 6));
  const Split split = open_split({.train = wide, .validation = wide, .seq_len = 2, .vocab = 300});
  CHECK_THAT(message_of(ErrorKind::data, [&] { std::ignore = evaluate_ngrams(split, 1); }),
             Contains(wide) && Contains("token 257"));
}

}  // namespace
}  // namespace dtrain::data::ngram_test
