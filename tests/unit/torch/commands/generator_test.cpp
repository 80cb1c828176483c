#include <catch2/catch.hpp>

#include "dtrain/checkpoint/model_file.h"
#include "dtrain/commands/commands.h"
#include "dtrain/commands/internal/prompts.h"
#include "support/messages.h"
#include "support/settings.h"
#include "support/temp_folder.h"
#include "unit/torch/model/bdh_fixture.h"

namespace dtrain::commands::generator_test {
namespace {

using testing::BdhFixture;
using testing::TempFolder;

constexpr const char* kMetadata =
    R"({"name": "bdh", "levels": 2, "width": 12, "heads": 2, "neurons": 10, "vocab": 256,
        "dropout": 0.1, "tie_layers": true})";

const checkpoint::format::Metadata kNoMetadata;

struct ModelFile {
  explicit ModelFile(const checkpoint::format::Metadata& metadata = {{"dtrain.model", kMetadata}},
                     std::int64_t vocab = 256)
      : fixture({.layers = 2, .width = 12, .heads = 2, .neurons = 10, .vocab = vocab}, at::kFloat) {
    fixture.randomise(6);
    checkpoint::write_model_file(path, fixture.model->parameters, fixture.weights, {}, metadata);
  }

  [[nodiscard]] config::Config config(std::string prompt, std::int64_t max_tokens) const {
    config::Config config;
    config.generate.from = path;
    config.generate.prompt = std::move(prompt);
    config.generate.max_tokens = max_tokens;
    return config;
  }

  TempFolder folder;
  std::string path = folder.path("model.safetensors");
  BdhFixture fixture;
};

std::string text_of(const config::Config& config) {
  std::string text;
  generate(config, [&](std::string_view bytes) { text += bytes; });
  return text;
}

/// Greedy text through the blocks, over the whole text for every byte.
std::string greedy_text(const BdhFixture& fixture, std::string text, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::vector<std::int64_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    const at::Tensor logits = fixture.logits(at::tensor(ids, at::kLong).unsqueeze(0))[0][-1];
    text += static_cast<char>(logits.argmax().item<std::int64_t>());
  }
  return text;
}

TEST_CASE("Greedy generation matches the blocks' own forward pass") {
  const ModelFile file;
  config::Config config = file.config("In the \xFF beginning", 40);
  config.generate.temperature = 0;
  CHECK(text_of(config) == greedy_text(file.fixture, "In the \xFF beginning", 40));
}

TEST_CASE("An empty prompt continues a newline that is not written") {
  const ModelFile file;
  config::Config config = file.config("", 12);
  config.generate.temperature = 0;
  CHECK("\n" + text_of(config) == greedy_text(file.fixture, "\n", 12));
}

TEST_CASE("The same seed gives the same text, another seed another") {
  const ModelFile file;
  config::Config config = file.config("a", 60);
  const std::string text = text_of(config);
  CHECK(text.size() == 61);
  CHECK(text_of(config) == text);
  config.train.seed = 2;
  CHECK(text_of(config) != text);
}

TEST_CASE("Fewer tokens are a prefix of more tokens") {
  const ModelFile file;
  CHECK(text_of(file.config("a", 30)).substr(0, 11) == text_of(file.config("a", 10)));
}

TEST_CASE("The prompt is written first, then byte by byte") {
  const ModelFile file;
  std::vector<std::size_t> sizes;
  generate(file.config("abc", 4), [&](std::string_view bytes) { sizes.push_back(bytes.size()); });
  CHECK(sizes == std::vector<std::size_t>{3, 1, 1, 1, 1});
}

TEST_CASE("A float32 file gives the same model in float64") {
  const ModelFile file;
  config::Config config = file.config("abc", 20);
  config.generate.temperature = 0;
  const std::string narrow = text_of(config);
  set(config, "machine.dtype", "float64");
  CHECK(text_of(config) == narrow);
}

TEST_CASE("A file without metadata determines its sizes, but needs --from-layers") {
  const ModelFile with;
  const ModelFile without(kNoMetadata);
  config::Config config = without.config("abc", 20);
  const std::string message =
      testing::message_of(base::ErrorKind::checkpoint, [&] { (void)text_of(config); });
  CHECK_THAT(message, Catch::Contains(without.path) && Catch::Contains("--from-layers"));
  config.generate.from_layers = 2;
  CHECK(text_of(config) == text_of(with.config("abc", 20)));
  config.generate.from_layers = 3;
  CHECK(text_of(config) != text_of(with.config("abc", 20)));
}

TEST_CASE("Levels that contradict the file are refused") {
  const ModelFile file;
  config::Config config = file.config("abc", 20);
  config.generate.from_layers = 3;
  const std::string message =
      testing::message_of(base::ErrorKind::usage, [&] { (void)text_of(config); });
  CHECK_THAT(message, Catch::Contains("--from-layers 3") && Catch::Contains("2"));
}

TEST_CASE("Metadata that is invalid or of another model is refused") {
  for (const char* metadata : {"", "[]", "{", R"({"levels": "two"})", R"({"depth": 2})",
                               R"({"levels": 2, "width": 12, "heads": 2, "neurons": 9})",
                               R"({"levels": 2, "width": 13, "heads": 2, "neurons": 10})"}) {
    INFO(metadata);
    const ModelFile file(checkpoint::format::Metadata{{"dtrain.model", metadata}});
    const std::string message = testing::message_of(base::ErrorKind::checkpoint,
                                                    [&] { (void)text_of(file.config("abc", 2)); });
    CHECK_THAT(message, Catch::Contains(file.path));
  }
}

TEST_CASE("A model with another vocabulary cannot generate bytes") {
  const ModelFile file(kNoMetadata, 300);
  config::Config config = file.config("abc", 2);
  config.generate.from_layers = 2;
  const std::string message =
      testing::message_of(base::ErrorKind::checkpoint, [&] { (void)text_of(config); });
  CHECK_THAT(message, Catch::Contains("300") && Catch::Contains("256"));
}

TEST_CASE("A file with an odd number of neurons is refused") {
  const ModelFile file;
  const BdhFixture odd({.layers = 2, .width = 12, .heads = 2, .neurons = 9, .vocab = 256},
                       at::kFloat);
  checkpoint::write_model_file(file.path, odd.model->parameters, odd.weights, {}, {});
  config::Config config = file.config("abc", 2);
  config.generate.from_layers = 2;
  const std::string message =
      testing::message_of(base::ErrorKind::checkpoint, [&] { (void)text_of(config); });
  CHECK_THAT(message, testing::Names(file.path, "--neurons 9", "odd"));
}

TEST_CASE("A text longer than the model's positions is refused before anything is written") {
  const ModelFile file;
  std::string written;
  const std::string message = testing::message_of(base::ErrorKind::usage, [&] {
    generate(file.config("abc", 65534), [&](std::string_view bytes) { written += bytes; });
  });
  CHECK_THAT(message, Catch::Contains("65534") && Catch::Contains("65536"));
  CHECK(written.empty());
}

/// Gives every text two tokens and has no token that precedes documents.
class PairTokenizer final : public data::Tokenizer {
 public:
  [[nodiscard]] data::TokenizerKind kind() const override {
    return data::TokenizerKind::hugging_face;
  }
  [[nodiscard]] std::int64_t vocab() const override { return 2; }
  [[nodiscard]] std::string_view model() const override { return {}; }
  [[nodiscard]] std::optional<std::uint32_t> end_of_document() const override { return {}; }
  [[nodiscard]] std::size_t cut(std::string_view /*text*/) const override { return 0; }
  [[nodiscard]] std::string text_of(std::int64_t /*token*/) const override { return {}; }
  [[nodiscard]] std::unique_ptr<data::Encoder> make_encoder() const override {
    return std::make_unique<PairEncoder>();
  }

 private:
  class PairEncoder final : public data::Encoder {
    void encode(std::string_view /*text*/, bool /*begins_document*/,
                std::vector<std::uint32_t>& tokens) override {
      tokens = {0, 1};
    }
  };
};

TEST_CASE("All tokens of a prompt that the model is fed need positions, also of an empty one") {
  const PairTokenizer tokenizer;
  for (const auto& [prompt, longest] : {std::pair("", 7), std::pair("a", 6)}) {
    config::GenerateConfig generate;
    generate.prompt = prompt;
    generate.max_tokens = longest;
    CHECK(read_prompts(generate, tokenizer, 8).front().tokens.size() == 2);
    generate.max_tokens = longest + 1;
    const std::string message = testing::message_of(
        base::ErrorKind::usage, [&] { (void)read_prompts(generate, tokenizer, 8); });
    CHECK_THAT(message, testing::Names(longest + 1, longest, 8));
  }
}

TEST_CASE("By default a text has 200 tokens, or as many as fit after its prompt") {
  const auto bytes = data::byte_tokenizer();
  config::GenerateConfig generate;
  for (const auto& [prompt, expected] : {std::pair("", 128), std::pair("abc", 125)}) {
    generate.prompt = prompt;
    CHECK(read_prompts(generate, *bytes, 128).front().max_tokens == expected);
    CHECK(read_prompts(generate, *bytes, 65536).front().max_tokens == 200);
  }
  CHECK(read_prompts(generate, *bytes, 4).front().max_tokens == 1);
  const std::string message =
      testing::message_of(base::ErrorKind::usage, [&] { (void)read_prompts(generate, *bytes, 3); });
  CHECK_THAT(message, testing::Names("the prompt", 3));
  CHECK_THAT(message, !Catch::Contains("--max-tokens"));
}

}  // namespace
}  // namespace dtrain::commands::generator_test
