// Compares a GPT-2 with a naive implementation in float64, for every kind that no fixture of
// transformers has.
#include "dtrain/model/gpt2/gpt2.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <map>
#include <numbers>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/config/gpt2/settings.h"
#include "dtrain/model/family.h"
#include "dtrain/model/gpt2/internal/layer_norm.h"
#include "dtrain/param/arena.h"
#include "support/block_results.h"
#include "support/messages.h"
#include "support/oracles/rounding.h"
#include "support/temp_folder.h"
#include "support/values.h"

namespace dtrain::model::gpt2::gpt2_test {
namespace {

using testing::BlockResults;
using testing::largest_error;
using testing::message_of;
using testing::Names;
using testing::run_blocks;
using Tensors = std::map<std::string, at::Tensor>;

constexpr std::int64_t kLength = 7;
constexpr std::int64_t kVocab = 17;

config::ModelConfig config_of(bool has_biases, bool ties_head) {
  return {.name = "gpt2",
          .layers = 2,
          .width = 12,
          .heads = 3,
          .family =
              config::gpt2::Settings{
                  .inner = 20, .positions = 9, .biases = has_biases, .tie_head = ties_head},
          .vocab = kVocab,
          .dropout = 0};
}

// Every parameter away from 0 and 1, so that each changes the result.
param::Arena random_weights(const Model& model) {
  param::Arena arena(param::ArenaLayout(model.parameters), at::kDouble, param::private_memory);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(3);
  for (const param::ParameterId id : model.parameters.ids()) {
    const at::Tensor view = arena.view(id);
    view.copy_(at::randn(view.sizes(), generator, at::kDouble) * 0.4);
  }
  return arena;
}

at::Tensor random_tokens() {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(4);
  return at::randint(0, kVocab, {2, kLength + 1}, generator, at::kLong);
}

// A GPT-2 with the weights of a file, in a few lines; ids (B, T).
class Naive {
 public:
  Naive(const config::ModelConfig& config, const Tensors& weights)
      : config_(config), weights_(weights) {}

  at::Tensor logits(const at::Tensor& ids) const {
    const at::Tensor positions = at::arange(ids.size(1), at::kLong);
    at::Tensor x =
        of("transformer.wte.weight").index({ids}) + of("transformer.wpe.weight").index({positions});
    for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
      const std::string prefix = "transformer.h." + std::to_string(layer) + ".";
      x = x + mapped(attention(mapped(normed(x, prefix + "ln_1"), prefix + "attn.c_attn")),
                     prefix + "attn.c_proj");
      x = x + mapped(gelu(mapped(normed(x, prefix + "ln_2"), prefix + "mlp.c_fc")),
                     prefix + "mlp.c_proj");
    }
    const bool is_tied = !weights_.contains("lm_head.weight");
    const at::Tensor& head = of(is_tied ? "transformer.wte.weight" : "lm_head.weight");
    return at::matmul(normed(x, "transformer.ln_f"), head.t());
  }

 private:
  const at::Tensor& of(const std::string& name) const { return weights_.at(name); }

  at::Tensor plus_bias(const at::Tensor& x, const std::string& name) const {
    return weights_.contains(name + ".bias") ? x + of(name + ".bias") : x;
  }
  at::Tensor mapped(const at::Tensor& x, const std::string& name) const {
    return plus_bias(at::matmul(x, of(name + ".weight")), name);
  }
  at::Tensor normed(const at::Tensor& x, const std::string& name) const {
    const at::Tensor centred = x - x.mean(-1, true);
    const at::Tensor deviation = (centred.square().mean(-1, true) + 1e-5).sqrt();
    return plus_bias(centred / deviation * of(name + ".weight"), name);
  }
  static at::Tensor gelu(const at::Tensor& x) {
    return 0.5 * x * (1 + (std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)).tanh());
  }
  // packed (B, T, 3D) -> (B, T, D), head by head.
  at::Tensor attention(const at::Tensor& packed) const {
    const std::int64_t d = config_.width / config_.heads;
    const std::int64_t length = packed.size(1);
    const at::Tensor is_later =
        at::ones({length, length}, at::kBool).triu(/*diagonal=*/1);  // (T, T)
    std::vector<at::Tensor> heads;
    for (std::int64_t head = 0; head < config_.heads; ++head) {
      const auto part = [&](std::int64_t map) {
        return packed.narrow(2, map * config_.width + head * d, d);  // (B, T, d)
      };
      const at::Tensor scores =
          at::matmul(part(0), part(1).transpose(1, 2)) / std::sqrt(static_cast<double>(d));
      heads.push_back(at::matmul(scores.masked_fill(is_later, -INFINITY).softmax(-1), part(2)));
    }
    return at::cat(heads, 2);
  }

  config::ModelConfig config_;
  Tensors weights_;
};

BlockResults naive_result(const config::ModelConfig& config, const Model& model,
                          const param::Arena& weights, const at::Tensor& tokens) {
  Tensors leaves;
  for (const param::ParameterId id : model.parameters.ids()) {
    const param::ParameterSpec& spec = model.parameters[id];
    at::Tensor leaf = param::exported_view(spec, weights.view(id)).detach().clone();
    leaves.emplace(spec.name, leaf.set_requires_grad(true));
  }
  const at::Tensor logits = Naive(config, leaves).logits(tokens.narrow(1, 0, kLength));
  const at::Tensor targets = tokens.narrow(1, 1, kLength).unsqueeze(2);
  const at::Tensor loss = -logits.log_softmax(-1).gather(2, targets).mean();
  torch::autograd::backward({loss}, {});
  BlockResults result{.logits = logits.detach()};
  for (const auto& [name, leaf] : leaves) result.gradients.emplace(name, leaf.grad());
  return result;
}

TEST_CASE(
    "Logits and gradients are those of a naive GPT-2, with and without biases, tied and not") {
  const bool has_biases = GENERATE(true, false);
  const bool ties_head = GENERATE(true, false);
  const auto kernels = GENERATE(config::Kernels::plain, config::Kernels::fused);
  CAPTURE(has_biases, ties_head, kernels == config::Kernels::fused);
  const config::ModelConfig config = config_of(has_biases, ties_head);
  const auto model = make_model(config, kLength, {}, {.kernels = kernels});
  const param::Arena weights = random_weights(*model);
  const at::Tensor tokens = random_tokens();
  const BlockResults found = run_blocks(*model, weights, tokens);
  const BlockResults expected = naive_result(config, *model, weights, tokens);
  CHECK(largest_error(found.logits, expected.logits) < 1e-12);
  REQUIRE(found.gradients.size() == expected.gradients.size());
  CHECK(found.gradients.contains("transformer.h.1.mlp.c_fc.bias") == has_biases);
  CHECK(found.gradients.contains("lm_head.weight") != ties_head);
  for (const auto& [name, gradient] : expected.gradients) {
    INFO(name);
    CHECK(largest_error(found.gradients.at(name), gradient) < 1e-11);
  }
}

TEST_CASE("A generator gives the logits of a GPT-2's blocks, with and without biases") {
  const bool has_biases = GENERATE(true, false);
  const config::ModelConfig config = config_of(has_biases, !has_biases);
  const auto model = make_model(config, kLength);
  const param::Arena weights = random_weights(*model);
  const at::Tensor tokens = random_tokens();
  const BlockResults whole = run_blocks(*model, weights, tokens);
  const auto generator = family_of(config).make_generator(config, weights);
  for (std::int64_t t = 0; t < kLength; ++t) {
    const at::Tensor& logits = generator->step(tokens[0][t].item<std::int64_t>());
    CHECK(largest_error(logits, whole.logits[0][t]) < 1e-12);
  }
}

// Rows whose mean is a hundred times their deviation, so that statistics in 16 bits are useless.
TEST_CASE("A 16-bit LayerNorm and its gradients are those of float64, rounded once") {
  constexpr std::int64_t kRows = 5;
  constexpr std::int64_t kWidth = 768;
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kHalf);
  auto random = at::make_generator<at::CPUGeneratorImpl>(5);
  const auto noise = [&](at::IntArrayRef shape) { return at::randn(shape, random, at::kDouble); };
  std::vector<at::Tensor> low{(noise({kRows, kWidth}) + 100).to(dtype), noise({kWidth}).to(dtype),
                              noise({kWidth}).to(dtype)};  // x, weight, bias
  const at::Tensor gradient = noise({kRows, kWidth}).to(dtype);
  std::vector<at::Tensor> high;
  for (at::Tensor& each : low) {
    high.push_back(each.to(at::kDouble).set_requires_grad(true));
    each.set_requires_grad(true);
  }
  const at::Tensor found = layer_norm(low[0], low[1], low[2], 1e-5);
  const at::Tensor centred = high[0] - high[0].mean(-1, true);
  const at::Tensor normed = centred / (centred.square().mean(-1, true) + 1e-5).sqrt();
  const at::Tensor expected = normed * high[1] + high[2];
  torch::autograd::backward({found}, {gradient});
  torch::autograd::backward({expected}, {gradient.to(at::kDouble)});

  const auto check = [&](const at::Tensor& value, const at::Tensor& exact) {
    // Statistics in float32 err by 100 * 2^-24 of a deviation, and sums over rows by less.
    const at::Tensor bound = exact.abs() * testing::unit_roundoff(dtype) + 100 * 0x1p-20;
    CHECK(value.scalar_type() == dtype);
    CHECK(((value.to(at::kDouble) - exact).abs() <= bound).all().item<bool>());
  };
  check(found.detach(), expected.detach());
  for (std::size_t i = 0; i < low.size(); ++i) {
    INFO("argument " << i);
    check(low[i].grad(), high[i].grad());
  }
}

TEST_CASE("A GPT-2 begins with nanoGPT's values") {
  const auto model = make_model(config_of(true, false), kLength);
  for (const param::ParameterSpec& spec : model->parameters) {
    INFO(spec.name);
    const bool is_bias = spec.name.ends_with(".bias");
    const bool is_norm = spec.name.find("ln_") != std::string::npos;
    const bool adds_to_stream = spec.name.ends_with("c_proj.weight");
    const double stddev = is_bias || is_norm ? 0 : 0.02;
    CHECK(spec.init_stddev == Approx(adds_to_stream ? stddev / 2 : stddev));  // 1/sqrt(2 * 2)
    CHECK(spec.init_mean == (is_norm && !is_bias ? 1 : 0));
  }
}

TEST_CASE("A GPT-2 is refused by name where its sizes do not fit") {
  config::ModelConfig config = config_of(true, true);
  const auto refusal = [&](std::int64_t length, const TensorCoordinate& place) {
    return message_of(base::ErrorKind::usage, [&] { (void)make_model(config, length, place); });
  };
  CHECK_THAT(refusal(10, {}), Names("--seq-len", 10, "--learned-positions", 9));
  CHECK_THAT(refusal(7, {.size = 2}), Names("--tp", 2, "--heads", 3));
  CHECK((void(make_model(config, 9)), true));
  config::gpt2::settings_of(config).inner = 2;
  CHECK_THAT(refusal(7, {.size = 3}), Names("--tp", 3, "--inner-size", 2));
}

}  // namespace
}  // namespace dtrain::model::gpt2::gpt2_test
