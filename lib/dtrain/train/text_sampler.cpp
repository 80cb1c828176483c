#include "dtrain/train/text_sampler.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>

#include "dtrain/base/error.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/data/tokens/token_file.h"
#include "dtrain/metrics/format.h"
#include "dtrain/model/family.h"
#include "dtrain/parallel/precision.h"
#include "dtrain/param/arena.h"
#include "dtrain/train/continued_text.h"

namespace dtrain::train {
namespace {

std::int64_t max_positions_of(const config::ModelConfig& model) {
  return model::family_of(model).max_positions(model);
}

// Tokens to generate: fewer for models of few positions.
std::int64_t sample_length(const config::ModelConfig& model) {
  return std::min(config::kUsualTextTokens, max_positions_of(model) / 2);
}

}  // namespace

std::shared_ptr<const data::Tokenizer> sample_tokenizer(const config::Config& config,
                                                        const data::Split& split) {
  if (config.report.sample_every == 0) return nullptr;
  const data::TokenFile& file = split.train.tokenized_file();
  auto tokenizer = data::tokenizer_of(file);
  if (tokenizer == nullptr) {
    base::fail(base::ErrorKind::usage,
               "--sample-every needs a tokenizer, but '{}' holds tokens without one: omit it, or "
               "prepare the text with dtrain data prepare",
               file.path());
  }
  const std::string& text = config.report.sample_prompt;
  // An empty prompt is checked too: the first sample must not end the run.
  const auto tokens = data::prompt_tokens(*tokenizer, text, "--sample-prompt");
  const std::int64_t prompt = data::prompt_length(text, tokens);
  const std::int64_t most = max_positions_of(config.model);
  if (prompt + sample_length(config.model) <= most) return tokenizer;
  base::fail(base::ErrorKind::usage,
             "--sample-prompt has {} {}, and {} are generated: the model has {} positions; shorten "
             "it",
             prompt, tokenizer->kind() == data::TokenizerKind::bytes ? "bytes" : "tokens",
             sample_length(config.model), most);
}

void check_sample_memory(const config::Config& config, const parallel::MemoryPlan& planned,
                         const model::Model& model) {
  const config::MachineConfig& machine = config.machine;
  const bool is_limited = machine.memory_limit.count > 0 && machine.device.is_cpu();
  if (config.report.sample_every == 0 || !is_limited) return;
  const at::ScalarType dtype = parallel::dtype_of(machine.dtype);
  // A prompt has at most one token per byte, and one that begins it.
  const std::int64_t prompt = std::ssize(config.report.sample_prompt) + 1;
  const model::Family& family = model::family_of(config.model);
  const std::int64_t sample =
      param::Arena::bytes(param::ArenaLayout(model.parameters), dtype) +
      family.generator_bytes(config.model, dtype, prompt + sample_length(config.model)) +
      family.prompt_bytes(config.model, dtype, prompt);
  // Between steps, activations and work buffers are free.
  const std::int64_t rest = planned.total() - planned.activations - planned.units - planned.work;
  if (rest + sample <= machine.memory_limit.count) return;
  base::fail(
      base::ErrorKind::usage,
      "--sample-every needs {} on rank 0 for a copy of the whole model, besides {} for training: "
      "more than --memory-limit {}; omit --sample-every, or raise the limit",
      metrics::format_bytes(sample), metrics::format_bytes(rest), machine.memory_limit);
}

std::string sample_text(const TrainContext& context) {
  const at::NoGradGuard no_grad;
  const config::Config& config = context.config;
  std::optional<param::Arena> weights;  // rank 0's
  if (context.world.rank() == 0) {
    weights.emplace(param::ArenaLayout(context.model.parameters),
                    parallel::dtype_of(config.machine.dtype), param::private_memory);
  }
  context.engine.whole_model().visit_parameters(
      [&](param::ParameterId id, const at::Tensor& values) {
        if (weights) weights->view(id).copy_(values);
      });
  std::string text;
  comm::run_long_on_leader(context.world, "writing a sample", [&] {
    const config::GenerateConfig plain;
    const std::string& prompt = config.report.sample_prompt;
    const auto generator = model::family_of(config.model).make_generator(config.model, *weights);
    text = prompt;
    continue_text(*generator, *context.tokenizer,
                  data::prompt_tokens(*context.tokenizer, prompt, "--sample-prompt"),
                  {.rule = {.temperature = plain.temperature,
                            .top_k = plain.top_k,
                            .top_p = plain.top_p,
                            .seed = config.train.seed},
                   .max_tokens = sample_length(config.model)},
                  [&](std::string_view bytes) { text += bytes; });
  });
  return text;
}

}  // namespace dtrain::train
