#include "dtrain/model/bdh/bdh.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <map>

#include "dtrain/base/error.h"
#include "dtrain/config/bdh/settings.h"
#include "dtrain/model/bdh/internal/chunked_attention.h"
#include "dtrain/model/family.h"
#include "unit/torch/model/bdh_fixture.h"
#include "unit/torch/model/naive_bdh.h"

namespace dtrain::model::bdh::bdh_test {
namespace {

using testing::BdhFixture;
using testing::largest_error;
using testing::length_error;

TEST_CASE("The 25m model has the reference's 25,296,896 parameters and 1.218 GFLOP per token") {
  const auto model = make_model(
      {.layers = 6, .width = 256, .heads = 4, .family = config::bdh::Settings{.neurons = 8192}},
      512);
  CHECK(model->num_elements() == 25'296'896);
  CHECK(model->training_flops_per_token() / 1e9 == Approx(1.218).margin(0.0005));
  CHECK(model->blocks.size() == 8);
  CHECK(model->costs.size() == 8);
}

TEST_CASE("The cost of chunked attention counts scores and states") {
  const BdhSizes sizes{.layers = 1, .width = 8, .heads = 2, .neurons = 64, .vocab = 16};
  const auto forward_flops = [&](const config::AttentionSetting& attention) {
    const auto model =
        make_bdh(sizes, 1024, {}, {.kernels = config::Kernels::fused, .attention = attention});
    return model->costs[BlockId(1)].forward_flops_per_token;
  };
  using Kind = config::AttentionSetting::Kind;
  // Three products with 8 x 128 weights; scores and values of half of a chunk's positions, in all
  // heads; a state of 8 x 128 values that is read and updated.
  CHECK(forward_flops({Kind::full, 0}) == 6 * 8 * 128 + 1024 * (128 + 8 * 2));
  CHECK(forward_flops({Kind::chunked, 32}) == 6 * 8 * 128 + 32 * (128 + 8 * 2) + 4 * 8 * 128);
}

TEST_CASE("The default model, mini, has 425,984 parameters") {
  const auto model = make_model(
      {.layers = 4, .width = 64, .heads = 4, .family = config::bdh::Settings{.neurons = 512}}, 128);
  CHECK(model->num_elements() == 425'984);
  CHECK(make_model({}, 128)->num_elements() == 425'984);
}

TEST_CASE("Parameters have the reference's names and shapes") {
  const auto model = make_bdh({.layers = 2, .width = 6, .heads = 3, .neurons = 4, .vocab = 9}, 8);
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const auto& spec : model->parameters) shapes[spec.name] = spec.export_shape();
  CHECK(shapes == std::map<std::string, std::vector<std::int64_t>>{{"embed.weight", {9, 6}},
                                                                   {"encoder", {3, 6, 4}},
                                                                   {"encoder_v", {3, 6, 4}},
                                                                   {"decoder", {12, 6}},
                                                                   {"lm_head", {6, 9}}});
  REQUIRE(model->buffers.size() == 1);
  CHECK(model->buffers[0].name == "attn.freqs");
  CHECK(model->buffers[0].value.sizes() == at::IntArrayRef({1, 1, 1, 4}));
}

TEST_CASE("Untied levels have separate matrices") {
  const BdhSizes sizes{
      .layers = 3, .width = 6, .heads = 3, .neurons = 4, .vocab = 9, .tie_layers = false};
  const auto model = make_bdh(sizes, 8);
  CHECK(model->num_elements() == 2 * 9 * 6 + 3 * 3 * 12 * 6);
  const BdhParameters ids = parameter_ids(sizes);
  for (std::size_t level = 0; level < 3; ++level) {
    const auto& spec = model->parameters[ids.layers[level].encoder_v];
    CHECK(spec.name == "levels." + std::to_string(level) + ".encoder_v");
  }
}

TEST_CASE("An unknown model is rejected") {
  CHECK_THROWS_AS(make_model({.name = "gpt"}, 8), base::Error);
}

TEST_CASE("The blocks equal the naive model, with and without tied levels and dropout") {
  const bool tie_layers = GENERATE(true, false);
  const double probability = GENERATE(0.0, 0.3);
  const BdhSizes sizes{.layers = 3,
                       .width = 5,
                       .heads = 3,
                       .neurons = 6,
                       .vocab = 11,
                       .dropout = probability,
                       .tie_layers = tie_layers};
  BdhFixture fixture(sizes, at::kDouble);
  fixture.randomise(21);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{22});
  const at::Tensor ids = at::randint(sizes.vocab, {3, 13}, generator, at::kLong);
  const BdhFixture::Run run{.training = true, .seed = 77, .first_sample = 41};
  const at::Tensor found = fixture.logits(ids, run);
  const double bound = testing::logits_bound(fixture, ids, at::kDouble, run);
  for (std::int64_t row = 0; row < 3; ++row) {
    const at::Tensor expected = testing::naive_logits(
        fixture, ids[row], {.probability = probability, .seed = 77, .sample = 41 + row});
    CHECK(largest_error(found[row], expected) <= bound);
  }
  if (probability > 0) CHECK(largest_error(fixture.logits(ids), found) > 1e-3);
}

TEST_CASE("Losses are per-token cross-entropies in nats") {
  BdhFixture fixture({.layers = 1, .width = 4, .heads = 1, .neurons = 4, .vocab = 7}, at::kDouble);
  fixture.randomise(2);
  const at::Tensor ids = at::tensor({1, 2, 3, 4, 5, 6}, at::kLong).view({2, 3});
  const at::Tensor targets = at::tensor({2, 3, 4, 5, 6, 0}, at::kLong).view({2, 3});
  const ParameterReader read = [&](param::ParameterId id) { return fixture.weights.view(id); };
  const Tap no_tap;
  TensorAxis axis;
  const BlockContext context{.targets = targets, .use = read, .tensor_axis = axis, .tap = no_tap};
  at::Tensor x = ids;
  for (const auto& block : fixture.model->blocks) x = block->forward(x, context);
  const at::Tensor probabilities = fixture.logits(ids).softmax(-1);
  const at::Tensor expected = -probabilities.gather(-1, targets.unsqueeze(-1)).squeeze(-1).log();
  // Exponentials, their sum over seven tokens, a division and a logarithm, twice.
  CHECK(largest_error(x, expected) <= testing::rounding_bound(at::kDouble, 2 * 20));
}

constexpr std::int64_t kLength = 40;

at::Tensor leaf(std::uint64_t seed, std::int64_t columns, double scale, at::ScalarType dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const at::Tensor values = at::randn({3, kLength, columns}, generator, at::kDouble);
  return values.mul(scale).to(dtype).set_requires_grad(true);
}

TEST_CASE("Chunked attention of any chunk size equals full attention, forward and backward") {
  const at::ScalarType dtype = GENERATE(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t chunk = GENERATE(1, 7, 16, 39);  // the last chunk is shorter, except for 1
  INFO(dtype << " chunk " << chunk);
  const at::Tensor q = leaf(1, 20, 0.3, dtype);
  const at::Tensor values = leaf(2, 6, 1, dtype == at::kHalf ? at::kFloat : dtype);
  const at::Tensor gradient = leaf(3, 6, 1, at::kDouble).detach();
  const at::Tensor whole_q = q.detach().to(at::kDouble).set_requires_grad(true);
  const at::Tensor whole_values = values.detach().to(at::kDouble).set_requires_grad(true);
  const at::Tensor found = attend_in_chunks(q, values, chunk);
  const at::Tensor expected = at::bmm(at::bmm(whole_q, whole_q.mT()).tril(-1), whole_values);
  torch::autograd::backward({found}, {gradient.to(values.scalar_type())});
  torch::autograd::backward({expected}, {gradient});
  CHECK(found.scalar_type() == values.scalar_type());
  // Half an ulp of each rounded value: a handful of partial sums.
  const double bound = dtype == at::kDouble  ? 1e-14
                       : dtype == at::kFloat ? 1e-6
                       : dtype == at::kHalf  ? 2e-3
                                             : 1.6e-2;
  CHECK(length_error(found, expected) < bound);
  CHECK(length_error(q.grad(), whole_q.grad()) < bound);
  CHECK(length_error(values.grad(), whole_values.grad()) < bound);
}

}  // namespace
}  // namespace dtrain::model::bdh::bdh_test
