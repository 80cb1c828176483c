#include "dtrain/model/bdh/internal/bdh_recurrent.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <span>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/tensor_file.h"
#include "support/temp_folder.h"
#include "unit/torch/model/bdh_fixture.h"

namespace dtrain::model::bdh::bdh_recurrent_test {
namespace {

using testing::BdhFixture;
using testing::largest_error;

constexpr BdhSizes kOddSizes{
    .layers = 3, .width = 5, .heads = 3, .neurons = 6, .vocab = 11, .tie_layers = true};
constexpr BdhSizes kWiderSizes{
    .layers = 2, .width = 33, .heads = 3, .neurons = 38, .vocab = 101, .tie_layers = true};

BdhSizes untied(BdhSizes sizes) {
  sizes.tie_layers = false;
  return sizes;
}

/// ids (T) -> logits (T, V), one token at a time.
at::Tensor recurrent_logits(const BdhFixture& fixture, const at::Tensor& ids) {
  // Products this small do not benefit from a second thread, and synchronizing threads on a busy
  // machine would take a hundred times as long.
  const testing::Threads one_thread(1);
  BdhRecurrent recurrent(fixture.sizes, fixture.weights);
  std::vector<at::Tensor> rows;
  for (std::int64_t t = 0; t < ids.numel(); ++t) {
    rows.push_back(recurrent.step(ids[t].item<std::int64_t>()).clone());
  }
  return at::stack(rows);
}

// Compares token-by-token generation in `dtype` with the blocks in float64.
void check_agreement(const BdhSizes& sizes, at::ScalarType dtype) {
  BdhFixture fixture(sizes, dtype);
  fixture.randomise(7);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{8});
  // Longer than two chunks of the recurrence's position tables.
  const at::Tensor ids = at::randint(sizes.vocab, {140}, generator, at::kLong);
  const at::Tensor exact = fixture.widened().logits(ids.unsqueeze(0))[0];
  const double bound = testing::logits_bound(fixture, ids.unsqueeze(0), dtype);
  CHECK(largest_error(recurrent_logits(fixture, ids), exact) <= bound);
  CHECK(bound < 0.5);
}

TEST_CASE("The recurrence equals the blocks' logits up to each dtype's rounding") {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const BdhSizes& sizes : {kWiderSizes, untied(kWiderSizes)}) {
      INFO(at::toString(dtype) << ", tied levels " << sizes.tie_layers);
      check_agreement(sizes, dtype);
    }
  }
  // A norm over five values amplifies rounding a hundredfold.
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    for (const BdhSizes& sizes : {kOddSizes, untied(kOddSizes)}) check_agreement(sizes, dtype);
  }
}

std::vector<std::int64_t> tokens_of(const at::Tensor& ids) {
  const auto* data = ids.const_data_ptr<std::int64_t>();
  return {data, data + ids.numel()};
}

// Compares prompts in one pass, continued token by token, with the blocks in float64 and with the
// recurrence from the first token on.
void check_prompts(const BdhSizes& sizes, at::ScalarType dtype) {
  BdhFixture fixture(sizes, dtype);
  fixture.randomise(7);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{8});
  const at::Tensor ids = at::randint(sizes.vocab, {140}, generator, at::kLong);
  const at::Tensor exact = fixture.widened().logits(ids.unsqueeze(0))[0];  // (T, V)
  const double bound = testing::logits_bound(fixture, ids.unsqueeze(0), dtype);
  const at::Tensor stepped = recurrent_logits(fixture, ids);  // (T, V)
  const testing::Threads one_thread(1);
  // Less than a chunk, whole chunks, and one more position; the tokens after them extend the state.
  for (const std::int64_t length : {1, 2, 63, 64, 65, 128, 130}) {
    INFO(length << " tokens");
    BdhRecurrent recurrent(fixture.sizes, fixture.weights);
    const std::vector<std::int64_t> tokens = tokens_of(ids);
    at::Tensor logits = stepped.clone();
    const auto prompt = std::span(tokens).first(static_cast<std::size_t>(length));
    logits[length - 1].copy_(recurrent.read_prompt(prompt));
    for (std::int64_t t = length; t < ids.numel(); ++t) {
      logits[t].copy_(recurrent.step(tokens[static_cast<std::size_t>(t)]));
    }
    CHECK(largest_error(logits, exact) <= bound);
    if (length == 1) CHECK(at::equal(logits, stepped));
    // The likeliest token is the same unless two are closer than both may be off.
    const double scale = exact.abs().max().item<double>();
    const at::Tensor two = std::get<0>(exact.topk(2, -1));  // (T, 2)
    const at::Tensor is_clear = (two.select(-1, 0) - two.select(-1, 1)) > 2 * bound * scale;
    const at::Tensor same = logits.argmax(-1) == stepped.argmax(-1);
    CHECK(same.logical_or(is_clear.logical_not()).all().item<bool>());
    if (!at::isReducedFloatingType(dtype)) CHECK(is_clear.any().item<bool>());
  }
}

TEST_CASE("A prompt in one pass gives the logits and tokens of one by one") {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const BdhSizes& sizes : {kWiderSizes, untied(kWiderSizes)}) {
      INFO(at::toString(dtype) << ", tied levels " << sizes.tie_layers);
      check_prompts(sizes, dtype);
    }
  }
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) check_prompts(kOddSizes, dtype);
}

TEST_CASE("Time of reading a prompt", "[.bench-generate]") {
  BdhFixture fixture({.layers = 4, .width = 64, .heads = 4, .neurons = 512, .vocab = 256},
                     at::kFloat);
  fixture.randomise(7);
  const std::vector<std::int64_t> tokens = tokens_of(at::randint(256, {4000}, at::kLong));
  const auto time = [&](const auto& read) {
    BdhRecurrent recurrent(fixture.sizes, fixture.weights);
    const auto begin = std::chrono::steady_clock::now();
    read(recurrent);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const double one_pass = time([&](BdhRecurrent& each) { (void)each.read_prompt(tokens); });
  const double stepped = time([&](BdhRecurrent& each) {
    for (const std::int64_t token : tokens) (void)each.step(token);
  });
  fmt::print("prompt of 4,000 tokens on mini: {:.3f} s, one by one {:.3f} s, {:.1f} times\n",
             one_pass, stepped, stepped / one_pass);
}

TEST_CASE("The recurrence equals the reference's golden logits") {
  const auto [name, sizes] = GENERATE(
      std::pair<const char*, BdhSizes>{
          "three_heads", {.layers = 3, .width = 48, .heads = 3, .neurons = 256, .vocab = 256}},
      std::pair<const char*, BdhSizes>{
          "mini", {.layers = 4, .width = 64, .heads = 4, .neurons = 512, .vocab = 256}});
  const auto file = checkpoint::format::SafetensorsFile::open(
      std::string(DTRAIN_SOURCE_DIR "/tests/golden/") + name + ".safetensors");
  BdhFixture fixture(sizes, at::kFloat);
  for (const char* parameter : {"embed.weight", "encoder", "encoder_v", "decoder", "lm_head"}) {
    fixture.exported(parameter).copy_(
        checkpoint::to_tensor(file.at(std::string("weight.") + parameter)));
  }
  const at::Tensor inputs = checkpoint::to_tensor(file.at("inputs"));    // (B, T)
  const at::Tensor expected = checkpoint::to_tensor(file.at("logits"));  // (B, T, V)
  for (std::int64_t row = 0; row < inputs.size(0); ++row) {
    // The reference has float32 rounding errors too.
    const double bound = 2 * testing::logits_bound(fixture, inputs[row].unsqueeze(0), at::kFloat);
    CHECK(largest_error(recurrent_logits(fixture, inputs[row]), expected[row]) <= bound);
  }
}

TEST_CASE("A position beyond 65,536 is rejected") {
  BdhFixture fixture({.layers = 1, .width = 2, .heads = 1, .neurons = 2, .vocab = 2}, at::kFloat);
  BdhRecurrent recurrent(fixture.sizes, fixture.weights);
  for (std::int64_t t = 0; t < 65536; ++t) (void)recurrent.step(t % 2);
  const std::string message =
      testing::message_of(base::ErrorKind::usage, [&] { (void)recurrent.step(0); });
  CHECK(message.find("65536") != std::string::npos);
}

TEST_CASE("A token outside the vocabulary is an internal error") {
  BdhFixture fixture(kOddSizes, at::kFloat);
  BdhRecurrent recurrent(fixture.sizes, fixture.weights);
  CHECK_THROWS_AS((void)recurrent.step(11), base::Error);
  CHECK_THROWS_AS((void)recurrent.step(-1), base::Error);
  CHECK_THROWS_AS((void)recurrent.read_prompt(std::vector<std::int64_t>{1, 11}), base::Error);
}

}  // namespace
}  // namespace dtrain::model::bdh::bdh_recurrent_test
