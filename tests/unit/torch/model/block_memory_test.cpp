// Compares each block's predicted memory with the measured memory of one microbatch.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "dtrain/config/llama/settings.h"
#include "dtrain/metrics/tensor_memory.h"
#include "dtrain/model/bdh/bdh.h"
#include "dtrain/model/family.h"
#include "dtrain/model/gpt2/gpt2.h"
#include "dtrain/model/llama/llama.h"
#include "dtrain/param/arena.h"
#include "support/ranks/local_ranks.h"

namespace dtrain::model::block_memory_test {
namespace {

constexpr std::int64_t kSequences = 2;
constexpr std::int64_t kLength = 128;

struct Case {
  at::ScalarType dtype = at::kFloat;
  double dropout = 0;
  std::int64_t neurons = 512;  // of a head of a BDH, or of a Llama's MLP
  std::int64_t vocab = 256;
  std::int64_t chunk = 0;  // chunk size of attention; 0: full
  bool is_fused = false;
  bool recomputes_gates = false;
  std::int64_t kv_heads = 0;   // of a Llama of four heads; 0: another family
  std::int64_t positions = 0;  // of a GPT-2 of four heads; 0: another family
};

std::unique_ptr<Model> model_of(const Case& test) {
  const auto kernels = test.is_fused ? config::Kernels::fused : config::Kernels::plain;
  if (test.kv_heads > 0) {
    const bool has_extras = test.kv_heads == 4;
    return llama::make_llama({.layers = 2,
                              .width = 64,
                              .heads = 4,
                              .kv_heads = test.kv_heads,
                              .head_dim = 16,
                              .intermediate = test.neurons,
                              .vocab = test.vocab,
                              .dropout = test.dropout,
                              .biases_qkv = has_extras,
                              .biases_output = has_extras,
                              .norms_heads = has_extras},
                             kLength, {}, kernels);
  }
  if (test.positions > 0) {
    return gpt2::make_gpt2({.layers = 2,
                            .width = 64,
                            .heads = 4,
                            .inner = test.neurons,
                            .positions = test.positions,
                            .vocab = test.vocab,
                            .dropout = test.dropout,
                            .has_biases = test.dropout == 0},
                           kLength, {}, kernels);
  }
  ComputeOptions computation;
  if (test.is_fused || test.chunk > 0) {
    using Kind = config::AttentionSetting::Kind;
    computation = {.kernels = kernels,
                   .attention = {test.chunk == 0 ? Kind::full : Kind::chunked, test.chunk},
                   .recomputes_gates = test.recomputes_gates,
                   .threads = at::get_num_threads()};
  }
  return bdh::make_bdh({.layers = 2,
                        .width = 64,
                        .heads = 4,
                        .neurons = test.neurons,
                        .vocab = test.vocab,
                        .dropout = test.dropout},
                       kLength, {}, computation);
}

struct Fixture {
  std::unique_ptr<Model> model;
  param::Arena weights;
};

// Normal weights with deviation 0.5.
Fixture fixture_of(const Case& test) {
  std::unique_ptr<Model> model = model_of(test);
  param::Arena weights(param::ArenaLayout(model->parameters), test.dtype, param::private_memory);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{3});
  weights.flat().copy_(at::randn({weights.flat().numel()}, generator) * 0.5);
  return {.model = std::move(model), .weights = std::move(weights)};
}

// The parameters of a block with preallocated gradients, so that a backward pass leaves no memory
// behind.
param::ParameterViews leaves_of(const Fixture& fixture) {
  param::ParameterViews leaves;
  for (const param::ParameterId id : fixture.model->parameters.ids()) {
    at::Tensor leaf = fixture.weights.view(id).detach();
    leaf.set_requires_grad(true);
    leaf.mutable_grad() = at::zeros_like(leaf);
    leaves.push_back(leaf);
  }
  return leaves;
}

// Runs forward and backward on input x, of which it holds the only reference. Writes values to
// `output`.
BlockMemory measure(Block& block, const at::Tensor& x, const BlockContext& context,
                    at::Tensor& output) {
  using metrics::memory_use;
  const auto current = [] { return metrics::memory_use().current; };
  BlockMemory found;
  {
    const at::NoGradGuard no_grad;
    const std::int64_t before = current();
    metrics::restart_peak();
    output = block.forward(x, context);
    found.forward_without_graph = memory_use().peak - before;
    output = at::Tensor();
  }
  at::Tensor input = x.detach();
  if (at::isFloatingType(x.scalar_type())) input.set_requires_grad(true);
  const std::int64_t before = current();
  metrics::restart_peak();
  at::Tensor y = block.forward(input, context);
  found.output = static_cast<std::int64_t>(y.nbytes());
  found.saved = current() - before - found.output;
  found.forward = memory_use().peak - before;
  output = y.detach();
  const at::Tensor gradient = at::ones_like(y);
  const std::int64_t without_saved = current() - found.saved;
  metrics::restart_peak();
  torch::autograd::backward({y}, {gradient});
  found.backward = memory_use().peak - without_saved;
  return found;
}

// The same for a block with a native backward pass; gradients are preallocated.
BlockMemory measure_native(Block& block, const at::Tensor& x, const BlockContext& context,
                           param::ParameterViews& gradients, at::Tensor& output) {
  using metrics::memory_use;
  const auto current = [] { return metrics::memory_use().current; };
  const at::NoGradGuard no_grad;
  BlockMemory found;
  std::int64_t before = current();
  metrics::restart_peak();
  output = block.forward(x, context);
  found.forward_without_graph = memory_use().peak - before;
  output = at::Tensor();
  std::vector<at::Tensor> saved;
  before = current();
  metrics::restart_peak();
  output = block.native_backward()->forward(x, context, saved);
  found.output = static_cast<std::int64_t>(output.nbytes());
  found.saved = current() - before - found.output;
  found.forward = memory_use().peak - before;
  const at::Tensor gradient = at::ones_like(output);
  const std::int64_t without_saved = current() - found.saved;
  metrics::restart_peak();
  const at::Tensor d_x = block.native_backward()->backward(
      x, gradient, saved, context, [&](param::ParameterId id) -> param::GradientTarget {
        return {.view = gradients[id], .is_first = true};
      });
  found.backward = memory_use().peak - without_saved;
  return found;
}

std::string text_of(const BlockMemory& m) {
  return fmt::format("{} {} {} {} {}\n", m.output, m.saved, m.forward, m.forward_without_graph,
                     m.backward);
}

// Prints two lines per block: predicted, measured.
std::string measure_blocks(const Case& test) {
  const Fixture fixture = fixture_of(test);
  const param::ParameterViews leaves = leaves_of(fixture);
  const ParameterReader read = [&](param::ParameterId id) { return leaves[id]; };
  const Tap tap;
  TensorAxis axis;
  const BlockContext context{.first_sample = at::zeros({}, at::kLong),
                             .training = true,
                             .targets = at::zeros({kSequences, kLength}, at::kLong),
                             .buffer_dtype = test.dtype == at::kDouble ? at::kDouble : at::kFloat,
                             .use = read,
                             .tensor_axis = axis,
                             .tap = tap};
  param::ParameterViews gradients;
  for (const param::ParameterId id : fixture.model->parameters.ids()) {
    gradients.push_back(at::zeros_like(widened(fixture.weights.view(id))));
  }
  const BatchShape shape{.sequences = kSequences, .length = kLength, .dtype = test.dtype};
  std::string text;
  for (const bool is_warm : {false, true}) {  // the first run includes LibTorch's caches
    at::Tensor x = at::zeros({kSequences, kLength}, at::kLong);
    for (const auto& block : fixture.model->blocks) {
      at::Tensor y;
      const BlockMemory found = block->native_backward() == nullptr
                                    ? measure(*block, x, context, y)
                                    : measure_native(*block, x, context, gradients, y);
      if (is_warm) text += text_of(block->memory(shape)) + text_of(found);
      x = y;
    }
  }
  return text;
}

// Runs in a separate process with a counting allocator. Each line of the argument is a case.
const testing::RankProgram kMeasure("measure blocks", [](comm::World&, const std::string& text) {
  metrics::install_counting_allocator();
  std::string found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    Case test;
    int dtype = 0;
    std::istringstream(line) >> dtype >> test.dropout >> test.neurons >> test.vocab >> test.chunk >>
        test.is_fused >> test.recomputes_gates >> test.kv_heads >> test.positions;
    test.dtype = static_cast<at::ScalarType>(dtype);
    found += measure_blocks(test);
  }
  return found;
});

void check(const char* what, std::int64_t predicted, std::int64_t measured) {
  INFO(what << ": predicted " << predicted << ", measured " << measured);
  CHECK(std::abs(predicted - measured) <= measured / 20);
}

std::string line_of(const Case& test) {
  return fmt::format("{} {} {} {} {} {:d} {:d} {} {}", static_cast<int>(test.dtype), test.dropout,
                     test.neurons, test.vocab, test.chunk, test.is_fused, test.recomputes_gates,
                     test.kv_heads, test.positions);
}

// The cases, and with fused kernels those of dtypes that have them.
std::vector<Case> with_fused(std::vector<Case> cases) {
  const std::size_t plain = cases.size();
  for (std::size_t i = 0; i < plain; ++i) {
    if (cases[i].dtype == at::kHalf) continue;
    cases.push_back(cases[i]);
    cases.back().is_fused = true;
  }
  return cases;
}

void check_blocks(const std::vector<Case>& cases) {
  std::string lines;
  for (const Case& test : cases) lines += line_of(test) + "\n";
  const auto outcome = testing::on_processes("measure blocks", {.size = 1, .argument = lines})[0];
  INFO(outcome.standard_error << outcome.text);
  REQUIRE(outcome.status == 0);
  std::istringstream numbers(outcome.text);
  const auto next = [&] {
    BlockMemory m;
    REQUIRE(numbers >> m.output >> m.saved >> m.forward >> m.forward_without_graph >> m.backward);
    return m;
  };
  for (const Case& test : cases) {
    INFO(line_of(test));
    for (const char* block : {"embedding", "level", "level", "head"}) {
      const BlockMemory predicted = next();
      const BlockMemory measured = next();
      INFO(block);
      check("output", predicted.output, measured.output);
      check("saved", predicted.saved, measured.saved);
      check("forward", predicted.forward, measured.forward);
      check("forward without a graph", predicted.forward_without_graph,
            measured.forward_without_graph);
      check("backward", predicted.backward, measured.backward);
    }
  }
}

// Prints the predicted and the measured memory of a Llama's generator that reads a prompt.
std::string measure_prompt(at::ScalarType dtype) {
  // 17 whole chunks. The state has room for 4096 positions and is a third of the sum or more, so that
  // neither part can be wrong within the tolerance.
  constexpr std::int64_t kPrompt = 17 * 128;
  config::ModelConfig config{.name = "llama", .layers = 6, .width = 64, .heads = 4};
  config::llama::settings_of(config) = {
      .kv_heads = 2, .head_dim = 32, .intermediate = 64, .max_positions = 8192};
  const std::unique_ptr<Model> model = make_model(config, /*seq_len=*/1);
  param::Arena weights(param::ArenaLayout(model->parameters), dtype, param::private_memory);
  weights.flat().fill_(0.01);
  const Family& family = model::family_of(config);
  const std::vector<std::int64_t> tokens(kPrompt, 7);
  std::int64_t measured = 0;
  for (const bool is_warm : {false, true}) {  // the first run includes LibTorch's caches
    const std::int64_t before = metrics::memory_use().current;
    metrics::restart_peak();
    const auto generator = family.make_generator(config, weights);
    (void)generator->read_prompt(tokens);
    if (is_warm) measured = metrics::memory_use().peak - before;
  }
  return fmt::format(
      "{} {}\n",
      family.generator_bytes(config, dtype, kPrompt) + family.prompt_bytes(config, dtype, kPrompt),
      measured);
}

// As kMeasure. Each word of the argument is a dtype.
const testing::RankProgram kMeasurePrompts("measure prompts", [](comm::World&,
                                                                 const std::string& text) {
  metrics::install_counting_allocator();
  std::string found;
  std::istringstream words(text);
  for (int dtype = 0; words >> dtype;) found += measure_prompt(static_cast<at::ScalarType>(dtype));
  return found;
});

TEST_CASE("A generator predicts its memory for reading a long prompt") {
  const std::vector<at::ScalarType> dtypes{at::kFloat, at::kDouble, at::kBFloat16};
  std::string words;
  for (const at::ScalarType dtype : dtypes) words += fmt::format("{} ", static_cast<int>(dtype));
  const auto outcome = testing::on_processes("measure prompts", {.size = 1, .argument = words})[0];
  INFO(outcome.standard_error << outcome.text);
  REQUIRE(outcome.status == 0);
  std::istringstream numbers(outcome.text);
  for (const at::ScalarType dtype : dtypes) {
    std::int64_t predicted = 0;
    std::int64_t measured = 0;
    REQUIRE(numbers >> predicted >> measured);
    check(c10::toString(dtype), predicted, measured);
  }
}

TEST_CASE("Every block predicts its memory for one microbatch, with and without recomputation") {
  std::vector<Case> cases;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    cases.push_back({.dtype = dtype});
    cases.push_back({.dtype = dtype, .chunk = 32});
  }
  check_blocks(cases);
}

TEST_CASE("Blocks predict their memory with dropout, few neurons and many tokens") {
  check_blocks({{.dropout = 0.1},
                {.neurons = 32},
                {.vocab = 4096},
                {.dtype = at::kBFloat16, .vocab = 4096}});
}

TEST_CASE("Fused blocks predict their memory for one microbatch") {
  std::vector<Case> cases;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    cases.push_back({.dtype = dtype, .is_fused = true});
    cases.push_back({.dtype = dtype, .chunk = 32, .is_fused = true});
    cases.push_back({.dtype = dtype, .chunk = 32, .is_fused = true, .recomputes_gates = true});
    cases.push_back({.dtype = dtype, .is_fused = true, .recomputes_gates = true});
    cases.push_back({.dtype = dtype, .neurons = 1100, .vocab = 4096, .is_fused = true});
  }
  check_blocks(cases);
}

TEST_CASE("A Llama's blocks predict their memory for one microbatch") {
  std::vector<Case> cases;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    cases.push_back({.dtype = dtype, .kv_heads = 2});
  }
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    cases.push_back({.dtype = dtype, .dropout = 0.1, .kv_heads = 2});
    cases.push_back({.dtype = dtype, .neurons = 160, .vocab = 4096, .kv_heads = 4});
  }
  check_blocks(with_fused(cases));
}

TEST_CASE("A GPT-2's blocks predict their memory for one microbatch") {
  std::vector<Case> cases;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    cases.push_back({.dtype = dtype, .neurons = 256, .positions = 1024});
    cases.push_back({.dtype = dtype, .neurons = 64, .positions = kLength});
  }
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    cases.push_back({.dtype = dtype, .dropout = 0.1, .neurons = 256, .positions = kLength});
    cases.push_back({.dtype = dtype, .neurons = 256, .vocab = 4096, .positions = kLength});
  }
  check_blocks(with_fused(cases));
}

}  // namespace
}  // namespace dtrain::model::block_memory_test
