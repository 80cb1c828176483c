#include "dtrain/data/split.h"

#include <filesystem>

#include "dtrain/config/values/data_mixture.h"
#include "dtrain/data/tokens/token_writer.h"
#include "support/messages.h"
#include "support/temp_folder.h"

namespace dtrain::data::split_test {
namespace {

using base::ErrorKind;
using Catch::Matchers::Contains;
using dtrain::testing::message_of;
using dtrain::testing::Names;
using dtrain::testing::TempFolder;

/// A text whose byte i is i, so that tokens equal their positions.
std::string counting_text(int size) {
  std::string text;
  for (int i = 0; i < size; ++i) text.push_back(static_cast<char>(i + 1));
  return text;
}

struct Sample {
  std::vector<std::int64_t> inputs;
  std::vector<std::int64_t> targets;
};

Sample sample_of(const Samples& samples, std::int64_t index) {
  const auto length = static_cast<std::size_t>(samples.seq_len());
  Sample sample{std::vector<std::int64_t>(length), std::vector<std::int64_t>(length)};
  samples.copy(index, sample.inputs, sample.targets);
  return sample;
}

TEST_CASE("Sample i is tokens i*T to i*T+T, its targets are shifted by one") {
  const TempFolder folder;
  const Split split = open_split({.train = folder.write("t", counting_text(13)), .seq_len = 4});
  REQUIRE(split.train.size() == 3);
  CHECK(sample_of(split.train.first(), 0).inputs == std::vector<std::int64_t>{1, 2, 3, 4});
  CHECK(sample_of(split.train.first(), 0).targets == std::vector<std::int64_t>{2, 3, 4, 5});
  CHECK(sample_of(split.train.first(), 2).inputs == std::vector<std::int64_t>{9, 10, 11, 12});
  CHECK(sample_of(split.train.first(), 2).targets == std::vector<std::int64_t>{10, 11, 12, 13});
  CHECK(split.validation.size() == 0);
}

TEST_CASE("A sample without its last target is not counted") {
  const TempFolder folder;
  const std::string path = folder.write("t", counting_text(12));
  CHECK(open_split({.train = path, .seq_len = 4}).train.size() == 2);
  CHECK(open_split({.train = path, .seq_len = 11}).train.size() == 1);
  const std::string message = message_of(
      ErrorKind::data, [&] { std::ignore = open_split({.train = path, .seq_len = 12}); });
  CHECK_THAT(message, Contains(path) && Contains("12 tokens") && Contains("13"));
}

TEST_CASE("A fraction takes the end of the text, and the parts share no token") {
  const TempFolder folder;
  const Split split = open_split(
      {.train = folder.write("t", counting_text(100)), .val_fraction = 0.1, .seq_len = 4});
  CHECK(split.train.first().range().begin == 0);
  CHECK(split.train.first().range().end == 90);
  CHECK(split.validation.range().begin == 90);
  CHECK(split.validation.range().end == 100);
  REQUIRE(split.validation.size() == 2);
  CHECK(sample_of(split.validation, 0).inputs == std::vector<std::int64_t>{91, 92, 93, 94});
  CHECK(sample_of(split.validation, 1).targets == std::vector<std::int64_t>{96, 97, 98, 99});
}

TEST_CASE("A validation file is used whole") {
  const TempFolder folder;
  const Split split = open_split({.train = folder.write("t", counting_text(100)),
                                  .validation = folder.write("v", "abcdefghi"),
                                  .seq_len = 4});
  CHECK(split.train.first().range().end == 100);
  REQUIRE(split.validation.size() == 2);
  CHECK(sample_of(split.validation, 1).targets == std::vector<std::int64_t>{'f', 'g', 'h', 'i'});
}

TEST_CASE("Validation data shorter than one sequence is rejected by file name") {
  const TempFolder folder;
  const std::string train = folder.write("t", counting_text(100));
  const std::string validation = folder.write("v", "abcd");
  CHECK_THAT(
      message_of(
          ErrorKind::data,
          [&] { std::ignore = open_split({.train = train, .val_fraction = 0.04, .seq_len = 4}); }),
      Names(train, "4 tokens"));
  CHECK_THAT(message_of(ErrorKind::data,
                        [&] {
                          std::ignore =
                              open_split({.train = train, .validation = validation, .seq_len = 4});
                        }),
             Names(validation, "4 tokens"));
}

TEST_CASE("A configuration selects the data") {
  config::Config config;
  config.data = {.train = "t", .validation = "v", .val_fraction = 0.25, .seq_len = 7};
  config.model.vocab = 9;
  const SplitOptions options = split_options(config);
  CHECK(options.train == "t");
  CHECK(options.validation == "v");
  CHECK(options.val_fraction == 0.25);
  CHECK(options.seq_len == 7);
  CHECK(options.vocab == 9);
}

TEST_CASE("A shifted sample begins later; the last one is limited by the tokens left") {
  const TempFolder folder;
  const Split split = open_split({.train = folder.write("t", counting_text(14)), .seq_len = 4});
  const Samples& samples = split.train.first();
  std::vector<std::int64_t> inputs(4);
  std::vector<std::int64_t> targets(4);
  samples.copy(0, inputs, targets, 3);
  CHECK(inputs == std::vector<std::int64_t>{4, 5, 6, 7});
  CHECK(targets == std::vector<std::int64_t>{5, 6, 7, 8});
  samples.copy(2, inputs, targets, 1);
  CHECK(targets == std::vector<std::int64_t>{11, 12, 13, 14});
  samples.copy(2, inputs, targets, 3);
  CHECK(targets == std::vector<std::int64_t>{11, 12, 13, 14});
}

TEST_CASE("A mixture reads each file separately") {
  const TempFolder folder;
  const std::string a = folder.write("a", counting_text(30));
  const std::string b = folder.write("b,c", std::string(30, 'b'));
  folder.write("d", std::string(30, 'd'));
  const Split split =
      open_split({.train = a + ":3," + folder.path("d") + ":1", .validation = b, .seq_len = 4});
  REQUIRE(split.train.sources().size() == 2);
  CHECK(split.train.sources()[0].weight == 3);
  CHECK(split.train.sources()[1].samples.file().path() == folder.path("d"));
  CHECK(split.train.size() == 14);
  CHECK(split.validation.size() == 7);
  CHECK(open_split({.train = b, .seq_len = 4}).train.sources().size() == 1);
  const std::string longer = folder.write("longer", counting_text(40));
  const Split alone = open_split({.train = a + ":1," + longer + ":1", .seq_len = 4});
  CHECK(alone.train.size() == 7 + 9);
  CHECK(alone.validation.size() == 0);
}

TEST_CASE(
    "One file with a weight is refused on the command line, and read from configurations of older "
    "runs") {
  const TempFolder folder;
  const std::string a = folder.write("a", counting_text(30));
  CHECK_THAT(message_of(ErrorKind::usage, [&] { config::reject_single_file_mixture(a + ":2"); }),
             Names("weight: --data " + a));
  CHECK_NOTHROW(config::reject_single_file_mixture(a));
  CHECK_NOTHROW(config::reject_single_file_mixture(a + ":2," + a + ":1"));
  CHECK(open_split({.train = a + ":2", .seq_len = 4}).train.size() ==
        open_split({.train = a, .seq_len = 4}).train.size());
}

TEST_CASE("A missing file with commas in its name is one file") {
  const TempFolder folder;
  const auto paths = [](const std::string& text) {
    std::vector<std::string> found;
    for (const auto& file : config::mixture_or_file(text)) found.push_back(file.path);
    return found;
  };
  const std::string moved = folder.path("a,b/book.txt");
  CHECK(paths(moved) == std::vector{moved});
  CHECK(paths(moved + ":2") == std::vector{moved + ":2"});
  CHECK(paths("a:2") == std::vector<std::string>{"a:2"});
  CHECK(paths("a:2,b:1") == std::vector<std::string>{"a", "b"});
}

TEST_CASE("A mixture with invalid weights is rejected in one line") {
  const TempFolder folder;
  const std::string a = folder.write("a", counting_text(30));
  const auto refusal = [&](const std::string& text) {
    return message_of(ErrorKind::usage,
                      [&] { std::ignore = open_split({.train = text, .seq_len = 4}); });
  };
  CHECK_THAT(refusal(a + ":0," + a + ":1"), Contains("\"0\"") && Contains("above 0"));
  CHECK_THAT(refusal(a + ":-1," + a + ":1"), Contains("-1"));
  CHECK_THAT(refusal(a + ":nan," + a + ":1"), Contains("nan"));
  CHECK_THAT(refusal(a + ":x," + a + ":1"), Contains("\"x\""));
  CHECK_THAT(refusal(a + ":1," + a), Contains("no weight"));
  CHECK_THAT(refusal(a + ":1,"), Contains("no weight"));
  CHECK_THAT(message_of(ErrorKind::usage,
                        [&] {
                          std::ignore = open_split(
                              {.train = a + ":1," + a + ":1", .val_fraction = 0.1, .seq_len = 4});
                        }),
             Contains("--val-data"));
  CHECK_THAT(message_of(ErrorKind::data,
                        [&] {
                          std::ignore = open_split(
                              {.train = a + ":1," + folder.path("missing") + ":1", .seq_len = 4});
                        }),
             Names(folder.path("missing")));
}

/// A token file whose tokenizer is given by kind and model, or unknown.
std::string tokens_of(const TempFolder& folder, const std::string& name,
                      const TokenWriter::Origin& origin) {
  TokenWriter writer(folder.path(name), origin);
  writer.add(std::vector<std::byte>(
      static_cast<std::size_t>(30 * bytes_per_token(origin.vocab))));  // 30 zero tokens
  writer.finish();
  writer.commit();
  return folder.path(name);
}

TEST_CASE("Tokens of an unknown tokenizer match only tokens of the same vocabulary") {
  const TempFolder folder;
  const std::string text = folder.write("text", counting_text(30));
  const std::string gpt2 = tokens_of(folder, "gpt2", {.vocab = 50257});
  const std::string llama3 = tokens_of(folder, "llama3", {.vocab = 128256});
  const std::string letters = tokens_of(folder, "letters", {.vocab = 256});
  const auto open = [](const std::string& train, const std::string& validation = "") {
    return open_split({.train = train, .validation = validation, .seq_len = 4, .vocab = 1'000'000});
  };
  const auto refusal = [&](const std::string& train, const std::string& validation = "") {
    return message_of(ErrorKind::data, [&] { std::ignore = open(train, validation); });
  };
  CHECK_THAT(refusal(gpt2, text), Contains(gpt2) && Contains(text) && Contains("50257"));
  CHECK_THAT(refusal(text, gpt2), Contains("different tokenizers"));
  CHECK_THAT(refusal(gpt2 + ":0.5," + llama3 + ":0.5"), Contains("50257") && Contains("128256"));
  CHECK(open(gpt2, gpt2).validation.size() > 0);
  CHECK(open(letters, text).validation.size() > 0);  // may be bytes
}

TEST_CASE("Files are compared with the first known tokenizer, which is the mixture's") {
  const TempFolder folder;
  const std::string unknown = tokens_of(folder, "unknown", {.vocab = 300});
  const auto known = [&](const std::string& name, const std::string& model) {
    return tokens_of(folder, name,
                     {.tokenizer = TokenizerKind::sentencepiece, .vocab = 300, .model = model});
  };
  const std::string a = known("a", "A");
  const std::string b = known("b", "B");
  const auto open = [](const std::string& train, const std::string& validation = "") {
    return open_split({.train = train, .validation = validation, .seq_len = 4, .vocab = 300});
  };
  const std::string mixed = unknown + ":1," + a + ":1";
  CHECK(open(mixed).train.tokenized_file().path() == a);
  CHECK(open(unknown).train.tokenized_file().path() == unknown);
  for (const auto& [train, validation] : std::vector<std::pair<std::string, std::string>>{
           {mixed + "," + b + ":1", ""}, {mixed, b}, {a + ":1," + b + ":1", ""}}) {
    CHECK_THAT(message_of(ErrorKind::data, [&] { std::ignore = open(train, validation); }),
               Contains(a) && Contains(b));
  }
  CHECK(has_tokenizer(mixed));
  CHECK_FALSE(has_tokenizer(unknown));
  const std::string missing = folder.path("missing");
  CHECK_FALSE(has_tokenizer(missing));
  CHECK(has_tokenizer(a + ":1," + missing + ":1"));  // the second is not opened
}

TEST_CASE("An unreadable file of a mixture is named before a vocabulary that does not fit") {
  const TempFolder folder;
  const std::string large = tokens_of(folder, "large", {.vocab = 2000});
  const std::string cut = tokens_of(folder, "cut", {.vocab = 2000});
  std::filesystem::resize_file(cut, std::filesystem::file_size(cut) - 1);
  for (const std::string& damaged : {folder.path("missing"), cut}) {
    for (const std::string& train :
         {large + ":1," + damaged + ":1", damaged + ":1," + large + ":1"}) {
      CHECK_THAT(message_of(ErrorKind::data,
                            [&] { std::ignore = open_split({.train = train, .seq_len = 4}); }),
                 Names(damaged));
    }
  }
}

TEST_CASE("A mixture of too many files, or with an infinite sum of weights, is rejected") {
  const TempFolder folder;
  const std::string a = folder.write("a", counting_text(30));
  const auto refusal = [&](const std::string& text) {
    return message_of(ErrorKind::usage,
                      [&] { std::ignore = open_split({.train = text, .seq_len = 4}); });
  };
  CHECK_THAT(refusal(a + ":1e308," + a + ":1e308"), Names("--data", "weights"));
  std::string many = "a:1";
  for (int i = 0; i < 1 << 16; ++i) many += ",a:1";
  CHECK_THAT(refusal(many), Contains("65537 files"));
}

DataIdentity identity_of(const SplitOptions& options) { return identify(open_split(options)); }

TEST_CASE("The identity depends on every token, the range in use, and the validation data") {
  const TempFolder folder;
  const std::string text(1000, 'a');
  const std::string path = folder.write("text", text);
  const DataIdentity whole = identity_of({.train = path, .seq_len = 8});
  CHECK(whole.validation == "none");
  CHECK(identity_of({.train = folder.write("copy", text), .seq_len = 8}).training ==
        whole.training);
  std::string other = text;
  other[777] = 'b';
  CHECK(identity_of({.train = folder.write("other", other), .seq_len = 8}).training !=
        whole.training);
  const DataIdentity part = identity_of({.train = path, .val_fraction = 0.1, .seq_len = 8});
  CHECK(part.training != whole.training);
  CHECK(part.validation.find("tokens 900 to 1000") != std::string::npos);
  const DataIdentity two =
      identity_of({.train = path, .validation = folder.path("other"), .seq_len = 8});
  CHECK(two.training == whole.training);
  CHECK(two.validation == identity_of({.train = folder.path("other"), .seq_len = 8}).training);
}

TEST_CASE("A mixture's identity depends on every token of every file, and on its weights") {
  const TempFolder folder;
  const std::string a = folder.write("a", std::string(1000, 'a'));
  const std::string b = folder.write("b", std::string(500, 'b'));
  const std::string c = folder.write("c", std::string(499, 'b') + "c");
  const auto training = [&](const std::string& text) {
    return identity_of({.train = text, .validation = b, .seq_len = 8}).training;
  };
  const std::string found = training(a + ":0.7," + b + ":0.3");
  CHECK(training(a + ":7," + b + ":3") == found);
  CHECK(training(a + ":0.7," + c + ":0.3") != found);
  CHECK(training(a + ":0.6," + b + ":0.4") != found);
  CHECK(training(a) != found);
  CHECK(identity_of({.train = a + ":1," + b + ":1", .validation = b, .seq_len = 8}).validation ==
        training(b));
}

TEST_CASE("An identity round-trips through its text") {
  const DataIdentity identity{.training = "3 samples, tokens 0 to 25", .validation = "none"};
  const DataIdentity back = identity_from(to_text(identity));
  CHECK(back.training == identity.training);
  CHECK(back.validation == identity.validation);
  CHECK_FALSE(is_without_checksum(back.training));
}

TEST_CASE("The identity of versions without checksums is recognised") {
  const DataIdentity old = identity_from("515 samples, fingerprint 0123456789abcdef");
  CHECK(old.training == "515 samples, fingerprint 0123456789abcdef");
  CHECK(old.validation.empty());
  CHECK(is_without_checksum(old.training));
}

}  // namespace
}  // namespace dtrain::data::split_test
